#include "emulator/decode/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "flashjit/error.hpp"

namespace flashjit::emulator {
namespace {

constexpr u64 kMostAligned = 64;  // module variables, as a tensor map must be

u64 round_up(u64 value, u64 to) {
  return (value + to - 1) / to * to;
}

}  // namespace

Layout::Layout(Program& program, const Function& entry, const std::vector<Variable>& locals) {
  u64 offset = 0;
  for (const Variable& param : entry.params) {
    offset = round_up(offset, param.align);
    program.params.push_back({offset, param.bytes});
    places_[param.name] = {Variable::Space::param, kParamWindow + offset, param.bytes};
    offset += param.bytes;
  }
  program.param_bytes = offset;

  u64 shared = kSharedBase, local = 0, dynamic_align = 16, globals = 0;
  std::vector<const Variable*> dynamic, initialised;
  auto place = [&](const Variable& variable) {
    switch (variable.space) {
      case Variable::Space::shared:
        if (variable.dynamic) {
          dynamic.push_back(&variable);
          dynamic_align = std::max(dynamic_align, variable.align);
          break;
        }
        shared = round_up(shared, variable.align);
        places_[variable.name] = {variable.space, shared, variable.bytes};
        shared += variable.bytes;
        break;
      case Variable::Space::local:
      case Variable::Space::param:  // of a call: a slot in the caller's frame
        local = round_up(local, variable.align);
        places_[variable.name] = {Variable::Space::local, local, variable.bytes};
        local += variable.bytes;
        break;
      case Variable::Space::global:
      case Variable::Space::constant:
        globals = round_up(globals, std::max<u64>(variable.align, 16));
        places_[variable.name] = {variable.space, globals, variable.bytes};
        globals += variable.bytes;
        initialised.push_back(&variable);
        break;
    }
  };
  std::vector<const Variable*> last;
  for (const auto* list : {&std::as_const(program.module.variables), &locals}) {
    for (const Variable& variable : *list) {
      if (variable.space == Variable::Space::constant)
        last.push_back(&variable);
      else
        place(variable);
    }
  }
  const u64 const_begin = globals;
  for (const Variable* variable : last) place(*variable);
  constexpr u64 kMostShared = 1u << 20;
  constexpr u64 kMostGlobals = 1u << 30;
  if (shared > kMostShared || globals > kMostGlobals || local > kMostShared) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the kernel declares {} bytes of shared, {} of local and {} of global memory",
                            shared, local, globals));
  }
  program.static_shared = static_cast<u32>(shared - kSharedBase);
  program.dynamic_shared = static_cast<u32>(round_up(shared, dynamic_align));
  for (const Variable* variable : dynamic)
    places_[variable->name] = {Variable::Space::shared, program.dynamic_shared, 0};
  program.local_bytes = static_cast<u32>(round_up(local, 16));

  // Module variables belong to the Program, so their addresses are final here.
  program.globals.assign(globals + kMostAligned, std::byte{0});
  const u64 start = round_up(reinterpret_cast<u64>(program.globals.data()), kMostAligned) -
                    reinterpret_cast<u64>(program.globals.data());
  program.const_begin = start + const_begin;
  for (const Variable* variable : initialised) {
    Place& at = places_[variable->name];
    std::byte* bytes = program.globals.data() + start + at.address;
    for (std::size_t i = 0; i < variable->value.size(); ++i) bytes[i] = std::byte{variable->value[i]};
    at.address = reinterpret_cast<u64>(bytes);
  }
}

const Layout::Place* Layout::find(std::string_view name) const {
  auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second;
}

}  // namespace flashjit::emulator
