#include "emulator/machine/late_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "emulator/exec/access.hpp"
#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {
namespace {

void report(const LateLoad& load) {
  const Report& places = *load.warp->cta->launch->report;
  const auto place = [&](const Ins& ins) { return places.place(index_of(*load.warp, ins)); };
  const std::string loaded = fmt::format("nothing has used yet what {} loads from shared memory at offset {}",
                                         place(*load.ins), load.overtaken - kSharedBase);
  const std::string advice = "use what was loaded first";
  std::string message;
  if (load.told == load.overtaker && load.writer == load.warp) {
    message = fmt::format("{}, and what this writes there may come first; {}", loaded, advice);
  } else {
    const u32(&id)[3] = load.writer->cta->id;
    const std::string by =
        fmt::format("warp {} of CTA ({}, {}, {})", load.writer->index, id[0], id[1], id[2]);
    message = fmt::format(
        "{}, and this does not wait for the load: what {} writes there ({}) may come first; {}, then let "
        "others know",
        loaded, place(*load.overtaker), by, advice);
  }
  finding(*load.warp, *load.told, FindingKind::race, load.lanes, message);
}

bool names(const std::vector<u32>& registers, u32 reg) {
  return std::ranges::find(registers, reg) != registers.end();
}

std::shared_ptr<LateLoad> issued(Warp& warp, const Ins& ins, const LoadStep& step, u32 mask) {
  auto load = std::make_shared<LateLoad>();
  load->warp = &warp;
  load->ins = &ins;
  load->clock = warp.clock[warp.agent];
  load->lanes = mask;
  load->bytes = step.bytes;
  const u32 lanes = step.lanes == 0 ? mask : kFull >> (kLanes - step.lanes);
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const int l = std::countr_zero(m);
    const u64 address = address_of(warp, ins, 0, l) + static_cast<u64>(ins.imm);
    if (step.generic && (address & kWindowMask) != kSharedWindow) continue;
    load->addressed |= 1u << l;
    load->address[l] = static_cast<u32>(address);
  }
  return load;
}

}  // namespace

void HeldLoads::look(Warp& warp, const Ins& ins, u32 mask) {
  const Program& program = *warp.cta->launch->program;
  const LoadStep& step = program.load_steps[program.load_step_of[index_of(warp, ins)]];
  std::vector<Holder> filled;
  if (!holders_.empty()) {
    const auto is_read = [&](const Holder& holder) {
      return (holder.lanes & mask) != 0 && names(step.reads, holder.reg);
    };
    if (step.copies) {
      for (const Holder& holder : holders_) {
        if (is_read(holder)) filled.push_back({0, holder.lanes & mask, holder.load});
      }
    } else if (!step.reads.empty()) {
      for (auto found = holders_.begin();
           (found = std::find_if(holders_.begin(), holders_.end(), is_read)) != holders_.end();)
        use(warp, std::shared_ptr(found->load));
    }
    for (Holder& holder : holders_) {
      if (names(step.writes, holder.reg)) holder.lanes &= ~mask;
    }
    std::erase_if(holders_, [](const Holder& holder) { return holder.lanes == 0; });
  }
  if (step.bytes != 0) {
    std::shared_ptr<LateLoad> load = issued(warp, ins, step, mask);
    if (load->addressed != 0) filled.push_back({0, mask, std::move(load)});
  }
  for (const Holder& holder : filled) {
    for (u32 reg : step.writes) holders_.push_back({reg, holder.lanes, holder.load});
  }
}

void HeldLoads::use(const Warp& warp, const std::shared_ptr<LateLoad>& load) {
  load->used = true;
  load->done = std::min(load->done, warp.clock[warp.agent]);
  if (load->overtaker != nullptr) report(*load);
  std::erase_if(holders_, [&](const Holder& holder) { return holder.load == load; });
}

void HeldLoads::finish(const Warp& warp) {
  for (const Holder& holder : holders_)
    holder.load->done = std::min(holder.load->done, warp.clock[warp.agent]);
  // Loads that others were told of stay: their results may yet be used.
  std::erase_if(holders_, [](const Holder& holder) { return holder.load->told == nullptr; });
}

void HeldLoads::tell_of_all(Warp& warp, const Ins& ins) {
  for (const Holder& holder : holders_) {
    LateLoad& load = *holder.load;
    if (load.told != nullptr) continue;
    load.told = &ins;
    u32 last = ~0u;  // lanes often read the same address
    for (u32 m = load.addressed; m != 0; m &= m - 1) {
      u32 address = load.address[std::countr_zero(m)];
      if (address == last) continue;
      last = address;
      Cta& cta = cta_of(warp, ins, address);
      cta.state.note_late(holder.load, warp.agent, address);
    }
  }
}

void LateReads::add(u32 granule, u32 bytes, const std::shared_ptr<LateLoad>& load) {
  std::vector<Read>& reads = reads_[granule];
  known_[granule] = true;
  // A warp's loads are served one after another, so this one replaces the earlier ones.
  for (Read& read : reads) {
    if (read.load->warp == load->warp && read.load != load) read.bytes &= ~bytes;
  }
  std::erase_if(reads, [](const Read& read) { return read.bytes == 0; });
  reads.push_back({bytes, load});
}

void LateReads::overwrite_known(Warp& writer, const Ins& ins, bool ordinary, const u32* heard, u32 granule,
                                u32 bytes) {
  const auto known = reads_.find(granule);
  for (Read& read : known->second) {
    if ((read.bytes & bytes) == 0) continue;
    read.bytes &= ~bytes;
    LateLoad& load = *read.load;
    // An ordinary store from the same SM is served after the load.
    if ((ordinary && load.warp->cta == writer.cta) || load.overtaker != nullptr) continue;
    // If the writer knows nothing of the load, another check reports that.
    const u32 known_clock = heard[load.warp->agent];
    if (known_clock < load.clock || known_clock >= load.done) continue;
    load.overtaker = &ins;
    load.writer = &writer;
    load.overtaken = granule << 4 | static_cast<u32>(std::countr_zero(bytes));
    if (load.used) report(load);
  }
  std::erase_if(known->second, [](const Read& read) { return read.bytes == 0; });
  if (!known->second.empty()) return;
  reads_.erase(known);
  known_[granule] = false;
}

}  // namespace flashjit::emulator
