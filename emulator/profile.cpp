#include "emulator/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace flashjit::emulator {
namespace {

// The multiply-adds of one instruction, from "m16n8k16" in "mma.sync.aligned.m16n8k16.row…".
u64 products_of(std::string_view opcode) {
  const bool wgmma = opcode.substr(0, 5) == "wgmma";
  std::size_t at = opcode.find(wgmma ? ".m64n" : ".m16n");
  if (at == std::string_view::npos) at = opcode.find(".m8n");
  if (at == std::string_view::npos) return 0;
  u64 product = 1, number = 0;
  for (char c : opcode.substr(at + 1)) {
    if (c >= '0' && c <= '9') {
      number = number * 10 + static_cast<u64>(c - '0');
    } else {
      if (number != 0) product *= number;
      number = 0;
      if (c == '.') break;
    }
  }
  // The four warps of a warpgroup share one wgmma.
  return wgmma ? product / 4 : product;
}

}  // namespace

void Counters::add(const Counters& other) {
  resize(std::max(executed.size(), other.executed.size()));
  for (std::size_t i = 0; i < other.executed.size(); ++i) {
    executed[i] += other.executed[i];
    Memory& into = memory[i];
    const Memory& from = other.memory[i];
    into.global_read += from.global_read;
    into.global_written += from.global_written;
    into.shared_bytes += from.shared_bytes;
    into.transactions += from.transactions;
    into.ideal += from.ideal;
  }
  barrier_waits += other.barrier_waits;
  tma_read += other.tma_read;
  tma_written += other.tma_written;
  ctas += other.ctas;
}

void accumulate(Profile& profile, const ProfileSource& source) {
  const Program& program = *source.program;
  const Counters& counters = *source.counters;
  ++profile.launches;
  profile.ctas += counters.ctas;
  profile.barrier_waits += counters.barrier_waits;
  profile.global_bytes_read += counters.tma_read;
  profile.global_bytes_written += counters.tma_written;
  std::map<std::pair<int, std::string>, SharedLine> lines;
  for (SharedLine& known : profile.shared_lines)
    lines[{known.source_line, known.instruction}] = std::move(known);
  std::set<int>& executed = profile.executed_lines[program.entry];
  for (std::size_t i = 0; i < counters.executed.size() && i < program.code.size(); ++i) {
    const Statement* statement = program.statement(static_cast<u32>(i));
    if (statement == nullptr) continue;
    const u64 count = counters.executed[i];
    if (count == 0) continue;
    executed.insert(statement->line);
    profile.instructions += count;
    profile.by_class[static_cast<std::size_t>(program.class_of[i])] += count;
    profile.by_opcode[std::string(statement->opcode)] += count;
    if (program.class_of[i] == OpClass::tensor)
      profile.tensor_flops += 2 * count * products_of(statement->opcode);
    const Counters::Memory& memory = counters.memory[i];
    profile.global_bytes_read += memory.global_read;
    profile.global_bytes_written += memory.global_written;
    profile.shared_bytes += memory.shared_bytes;
    profile.shared_transactions += memory.transactions;
    const u64 conflicts = memory.transactions > memory.ideal ? memory.transactions - memory.ideal : 0;
    profile.bank_conflicts += conflicts;
    if (memory.transactions == 0) continue;
    int line = 0;
    std::string origin;
    // The innermost function that is not a wrapper of a single instruction.
    for (int at = statement->source; at >= 0; at = program.module.lines[at].caller) {
      line = program.module.lines[at].line;
      if (line >= 1 && static_cast<std::size_t>(line) <= source.origins.size())
        origin = source.origins[line - 1];
      if (!origin.starts_with("templates/ptx/")) break;
    }
    SharedLine& entry = lines[{line, std::string(statement->opcode)}];
    entry.source_line = line;
    entry.origin = origin;
    entry.instruction = statement->opcode;
    entry.accesses += count;
    entry.transactions += memory.transactions;
    entry.conflicts += conflicts;
  }
  profile.shared_lines.clear();
  for (auto& [key, entry] : lines) profile.shared_lines.push_back(std::move(entry));
  std::stable_sort(
      profile.shared_lines.begin(), profile.shared_lines.end(), [](const SharedLine& a, const SharedLine& b) {
        return a.conflicts != b.conflicts ? a.conflicts > b.conflicts : a.transactions > b.transactions;
      });
}

std::string Profile::table() const {
  std::string out = fmt::format("{} launch{}, {} CTA{}, {} warp instructions\n", launches,
                                launches == 1 ? "" : "es", ctas, ctas == 1 ? "" : "s", instructions);
  for (int k = 0; k < kOpClasses; ++k) {
    if (by_class[k] == 0) continue;
    out += fmt::format("  {:<12} {:>14} {:>6.1f} %\n", to_string(static_cast<OpClass>(k)), by_class[k],
                       100.0 * static_cast<double>(by_class[k]) / static_cast<double>(instructions));
  }
  out += fmt::format("tensor cores {:.3f} Gflop\n", static_cast<double>(tensor_flops) * 1e-9);
  out += fmt::format("global memory: {} bytes read, {} bytes written\n", global_bytes_read,
                     global_bytes_written);
  out += fmt::format("shared memory: {} bytes in {} transactions, {} of them bank conflicts\n", shared_bytes,
                     shared_transactions, bank_conflicts);
  out += fmt::format("barriers: {} waits\n", barrier_waits);
  if (!shared_lines.empty())
    out +=
        fmt::format("{:>12} {:>12} {:>12}  shared memory by line\n", "accesses", "transactions", "conflicts");
  for (const SharedLine& line : shared_lines) {
    out += fmt::format("{:>12} {:>12} {:>12}  {} {}\n", line.accesses, line.transactions, line.conflicts,
                       line.instruction,
                       line.origin.empty() ? fmt::format("line {}", line.source_line) : line.origin);
  }
  return out;
}

std::string Profile::json() const {
  nlohmann::json classes = nlohmann::json::object();
  for (int k = 0; k < kOpClasses; ++k) classes[to_string(static_cast<OpClass>(k))] = by_class[k];
  nlohmann::json lines = nlohmann::json::array();
  for (const SharedLine& line : shared_lines) {
    lines.push_back({{"line", line.source_line},
                     {"origin", line.origin},
                     {"instruction", line.instruction},
                     {"accesses", line.accesses},
                     {"transactions", line.transactions},
                     {"conflicts", line.conflicts}});
  }
  nlohmann::json json = {{"launches", launches},
                         {"ctas", ctas},
                         {"instructions", instructions},
                         {"by_class", classes},
                         {"by_opcode", by_opcode},
                         {"tensor_flops", tensor_flops},
                         {"global_bytes_read", global_bytes_read},
                         {"global_bytes_written", global_bytes_written},
                         {"shared_bytes", shared_bytes},
                         {"shared_transactions", shared_transactions},
                         {"bank_conflicts", bank_conflicts},
                         {"barrier_waits", barrier_waits},
                         {"shared_lines", lines}};
  return json.dump(2);
}

}  // namespace flashjit::emulator
