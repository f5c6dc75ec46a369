// Schedule strings and the table of fields behind them.
#include "generator/schedule.hpp"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "flashjit/error.hpp"

namespace flashjit {
namespace {

constexpr std::size_t kFamilies = 3;

// A field of schedule type S: what the world sees of it, and where it is kept.
template <class S>
struct Knob {
  ScheduleField field;
  int S::*member;
};

constexpr std::string_view kDqUnordered = "dQ: 0 in a pass of its own, 1 added atomically";
constexpr std::string_view kDqOrdered = "dQ: 0 in a pass of its own, 1 added atomically, 2 in a fixed order";

template <class S>
constexpr auto knobs_of() {
  if constexpr (std::is_same_v<S, SimtSchedule>) {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per CTA", 16, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per step", 8, 256}, &S::tile_n},
        {{"w", "warps", "warps per CTA", 1, 16}, &S::warps},
        {{"s", "stages", "buffers for K and V, 1 = they take turns in one", 1, 2}, &S::stages},
        {{"l", "lanes", "lanes of a warp across the keys: 4, 8 or 16", 4, 16}, &S::lanes},
        {{"c", "min_ctas", "CTAs per multiprocessor that registers must allow, 0 = one", 0, 8}, &S::min_ctas},
        {{"u", "unroll", "unrolling of the loops inside the two products", 1, 8}, &S::unroll},
        {{"pf", "prefetch", "Q and P fragments of the next step are loaded ahead", 0, 1}, &S::prefetch},
    });
  } else if constexpr (std::is_same_v<S, MmaSchedule>) {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per CTA", 16, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per step", 16, 256}, &S::tile_n},
        {{"w", "warps", "warps per CTA", 1, 16}, &S::warps},
        {{"s", "stages", "K/V tiles in flight", 1, 4}, &S::stages},
        {{"qr", "q_in_regs", "Q fragments in registers", 0, 1}, &S::q_in_regs},
        {{"b", "blocks", "parts of a tile, each multiplied beside the softmax of the one before", 1, 8},
         &S::blocks},
        {{"op", "optimistic", "exponentials before maxima, and again where that was wrong", 0, 1},
         &S::optimistic},
        {{"kv", "kv_apart", "K and V wait on barriers of their own", 0, 1}, &S::kv_apart},
        {{"lz", "lazy", "exponentials may grow to 2^lazy before O is rescaled, 0 = always", 0, 16}, &S::lazy},
        {{"c", "min_ctas", "CTAs per multiprocessor that registers must allow, 0 = as ptxas likes", 0, 8},
         &S::min_ctas},
        {{"u", "unroll", "unrolling of the loop over unmasked tiles", 1, 8}, &S::unroll},
        {{"p", "persistent", "0 one tile per CTA, 1 static order", 0, 1}, &S::persistent},
    });
  } else if constexpr (std::is_same_v<S, WgmmaSchedule>) {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per CTA", 64, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per step", 16, 256}, &S::tile_n},
        {{"s", "stages", "K/V tiles in flight", 1, 6}, &S::stages},
        {{"qr", "q_in_regs", "Q in registers: 0 none, 1 all, 2 half (fp32: the first of its three parts)", 0,
          2},
         &S::q_in_regs},
        {{"o", "o_passes", "passes in which O leaves, 0 = through Q's place", 0, 4}, &S::o_passes},
        {{"lz", "lazy",
          "exponentials may grow to 2^lazy before O is rescaled, 0 = always; in fp16 with optimistic 1, of "
          "masked blocks only",
          0, 16},
         &S::lazy},
        {{"op", "optimistic", "exponentials before maxima in unmasked blocks", 0, 1}, &S::optimistic},
        {{"pp", "ping_pong", "warpgroups take turns to issue products", 0, 1}, &S::ping_pong},
        {{"ov", "overlap", "S of one block and O of the one before in flight together", 0, 1}, &S::overlap},
        {{"re", "rescale_early", "O is rescaled while the next S is computed", 0, 1}, &S::rescale_early},
        {{"p", "persistent", "0 one tile per CTA, 1 static order, 2 dynamic, 3 even shares", 0, 3},
         &S::persistent},
        {{"l", "section", "MB of K and V that concurrent tiles share in L2, 0 = those of all heads", 0, 128},
         &S::section},
        {{"ch", "max_chains", "partial row maxima per row", 2, 8}, &S::max_chains},
        {{"c", "min_ctas", "CTAs per multiprocessor that registers must allow, 0 = one", 0, 4}, &S::min_ctas},
        {{"u", "unroll", "unrolling of the loop over unmasked tiles", 1, 8}, &S::unroll},
        {{"cl", "cluster", "CTAs that load K and V for each other", 1, 2}, &S::cluster},
        {{"sp", "splits", "CTAs that share out the keys of a tile (fp32: its columns)", 1, 8}, &S::splits},
        {{"pt", "ptxas", "optimisation level of ptxas: 1 or 3", 1, 3}, &S::ptxas},
    });
  } else if constexpr (std::is_same_v<S, SimtBackwardSchedule>) {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per step", 8, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per CTA", 8, 256}, &S::tile_n},
        {{"w", "warps", "warps per CTA", 1, 16}, &S::warps},
        {{"dq", "dq", kDqUnordered, 0, 1}, &S::dq},
    });
  } else if constexpr (std::is_same_v<S, MmaBackwardSchedule>) {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per step", 16, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per CTA", 16, 256}, &S::tile_n},
        {{"w", "warps", "warps per CTA", 1, 16}, &S::warps},
        {{"s", "stages", "tiles of Q and dO in flight", 1, 2}, &S::stages},
        {{"sp", "sharers", "warps that have the same keys, and halves of rows and columns", 1, 2},
         &S::sharers},
        {{"dq", "dq", kDqUnordered, 0, 1}, &S::dq},
    });
  } else {
    return std::to_array<Knob<S>>({
        {{"m", "tile_m", "query rows per step", 64, 256}, &S::tile_m},
        {{"n", "tile_n", "keys per CTA", 64, 256}, &S::tile_n},
        {{"s", "stages", "tiles of Q and dO in flight, 2 (fp32: or 1)", 1, 2}, &S::stages},
        {{"dq", "dq", kDqOrdered, 0, 2}, &S::dq},
        {{"t", "turns", "of the two warpgroups at the exponentials", 0, 1}, &S::turns},
        {{"sp", "splits", "parts of a tile's queries that CTAs take separately, at the most", 1, 32},
         &S::splits},
        {{"st", "staged", "dQ of 64 x 128 leaves through shared memory, mostly in place of the next K and V",
          0, 1},
         &S::staged},
    });
  }
}

template <class S>
std::span<const ScheduleField> fields() {
  static const std::vector<ScheduleField> list = [] {
    std::vector<ScheduleField> made;
    for (const auto& knob : knobs_of<S>()) made.push_back(knob.field);
    return made;
  }();
  return list;
}

std::string range_of(const ScheduleField& field) {
  return fmt::format("{} to {}", field.minimum, field.maximum);
}

template <class S>
S parse_fields(std::string_view text, std::string_view whole) {
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::invalid_argument, fmt::format("schedule \"{}\": {}", whole, why),
                 "A schedule reads like mma:m64n64w4s2; `flashjit tune --dry-run` lists legal ones.");
  };
  S schedule;
  unsigned seen = 0;
  while (!text.empty()) {
    std::size_t letters = 0;
    while (letters < text.size() && text[letters] >= 'a' && text[letters] <= 'z') ++letters;
    const std::string_view name = text.substr(0, letters);
    if (letters == 0) throw wrong(fmt::format("a knob's letters must come before \"{}\"", text));
    int value = 0;
    const auto [end, error] = std::from_chars(text.data() + letters, text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
      throw wrong(fmt::format("the number after \"{}\" is too large", name));
    if (error != std::errc{}) throw wrong(fmt::format("a number must follow \"{}\"", name));
    const auto used = static_cast<std::size_t>(end - text.data());
    bool known = false;
    unsigned bit = 1;
    for (const auto& knob : knobs_of<S>()) {
      if (knob.field.letters == name) {
        if (value < knob.field.minimum || value > knob.field.maximum) {
          throw wrong(fmt::format("{} is {}, may be {}", knob.field.name, value, range_of(knob.field)));
        }
        if ((seen & bit) != 0) throw wrong(fmt::format("{} is given twice", knob.field.name));
        seen |= bit;
        schedule.*knob.member = value;
        known = true;
      }
      bit <<= 1;
    }
    if (!known) throw wrong(fmt::format("unknown field \"{}\"", name));
    text.remove_prefix(used);
  }
  return schedule;
}

}  // namespace

const char* to_string(Family family) {
  switch (family) {
    case Family::simt:
      return "simt";
    case Family::mma:
      return "mma";
    case Family::wgmma:
      return "wgmma";
  }
  return "?";
}

Family family_of(const Schedule& schedule) {
  return static_cast<Family>(schedule.index() % kFamilies);
}

Pass pass_of(const Schedule& schedule) {
  return schedule.index() < kFamilies ? Pass::forward : Pass::backward;
}

int tile_m_of(const Schedule& schedule) {
  return std::visit([](const auto& s) { return s.tile_m; }, schedule);
}

int rows_of_tile(const Schedule& schedule) {
  const auto* wgmma = std::get_if<WgmmaSchedule>(&schedule);
  return tile_m_of(schedule) * (wgmma != nullptr ? wgmma->cluster : 1);
}

std::span<const ScheduleField> fields_of(Pass pass, Family family) {
  const bool forward = pass == Pass::forward;
  switch (family) {
    case Family::simt:
      return forward ? fields<SimtSchedule>() : fields<SimtBackwardSchedule>();
    case Family::mma:
      return forward ? fields<MmaSchedule>() : fields<MmaBackwardSchedule>();
    case Family::wgmma:
      return forward ? fields<WgmmaSchedule>() : fields<WgmmaBackwardSchedule>();
  }
  return {};
}

int get(const Schedule& schedule, std::string_view name) {
  return std::visit(
      [&]<class S>(const S& s) -> int {
        for (const auto& knob : knobs_of<S>()) {
          if (knob.field.name == name) return s.*knob.member;
        }
        throw Error(ErrorCode::internal,
                    fmt::format("family {} has no schedule field {}", to_string(family_of(schedule)), name));
      },
      schedule);
}

std::string to_string(const Schedule& schedule) {
  return std::visit(
      [&]<class S>(const S& s) {
        std::string text = fmt::format("{}{}:", to_string(family_of(schedule)),
                                       pass_of(schedule) == Pass::backward ? "-backward" : "");
        const S defaults;
        for (const auto& knob : knobs_of<S>()) {
          const bool always = knob.field.letters.size() == 1 && knob.field.letters.find_first_of("mnws") == 0;
          if (always || s.*knob.member != defaults.*knob.member)
            text += fmt::format("{}{}", knob.field.letters, s.*knob.member);
        }
        return text;
      },
      schedule);
}

Schedule parse_schedule(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view family = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  if (family == "simt") return parse_fields<SimtSchedule>(rest, text);
  if (family == "mma") return parse_fields<MmaSchedule>(rest, text);
  if (family == "wgmma") return parse_fields<WgmmaSchedule>(rest, text);
  if (family == "simt-backward") return parse_fields<SimtBackwardSchedule>(rest, text);
  if (family == "mma-backward") return parse_fields<MmaBackwardSchedule>(rest, text);
  if (family == "wgmma-backward") return parse_fields<WgmmaBackwardSchedule>(rest, text);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("schedule \"{}\": the family is \"{}\", may be simt, mma or wgmma, or one of these "
                          "with \"-backward\"",
                          text, family),
              "A schedule reads like mma:m64n64w4s2; `flashjit tune --dry-run` lists legal ones.");
}

}  // namespace flashjit
