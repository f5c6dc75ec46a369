// The decoded form of a kernel: instructions whose operands are byte offsets of rows of 32 lanes.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/ptx/module.hpp"

namespace flashjit::emulator {

struct Warp;
struct Ins;

inline constexpr int kLanes = 32;
inline constexpr u32 kFull = 0xffffffffu;
inline constexpr u32 kNoTarget = ~0u;

// Executes one instruction for the lanes of the mask: those that are active and pass the guard.
using Handler = void (*)(Warp& warp, const Ins& ins, u32 mask);

// How an instruction is counted.
enum class OpClass : u8 {
  integer,      // integer arithmetic, logic, moves, selects, comparisons
  fp32,         // fp32 (and fp64) arithmetic
  special,      // ex2, lg2, rcp, rsqrt, sqrt, tanh, sin, cos
  packed,       // f16, f16x2, bf16, bf16x2 arithmetic
  convert,      // cvt
  tensor,       // mma, wgmma
  matrix_move,  // ldmatrix, stmatrix, movmatrix
  shared,       // loads, stores and atomics in shared memory
  global,       // loads, stores and atomics in global, constant and local memory
  param,        // loads of kernel parameters
  async_copy,   // cp.async, TMA, bulk copies
  shuffle,      // shfl, vote, match, redux, elect
  barrier,      // barriers, mbarrier, fences, waits
  control,      // branches, calls, exits
};
inline constexpr int kOpClasses = 14;
const char* to_string(OpClass cls);

// What the checked loop must inspect before it runs an instruction.
enum InsFlag : u8 {
  kGuardNegated = 1,
  kAligned = 2,             // all lanes that have not exited must be active
  kTouchesAccumulator = 4,  // names a row that a wgmma writes or reads asynchronously
  kReleasesWarpgroup = 8,   // wgmma itself and its waits: these may name rows in flight
  kTouchesLoaded = 16,      // has a LoadStep
  kBreaksRule = 32,         // has a StaticFinding
  kOwnShared = 64,          // an address of shared memory must be the CTA's own (.shared, .shared::cta)
};

// One cache line. An operand is the byte offset of a row of 32 values, of 4 or 8 bytes each: in the warp's
// registers or, if bit 0 is set, in the program's constants. So no handler has to ask what kind of operand it
// has.
struct alignas(64) Ins {
  Handler run = nullptr;
  i64 imm = 0;             // offset of the first memory operand
  u32 d = 0;               // destination row
  u32 s[4] = {};           // source rows, or predicate numbers
  u32 list = 0;            // first entry in Program::lists
  u32 target = kNoTarget;  // of a branch
  u32 rejoin = kNoTarget;  // where a divergent branch's lanes meet again
  u16 guard = 0;           // predicate 0 is always true
  u16 pair = 0;            // predicate of a %r|%p destination; 0: none
  u8 count = 0;            // length of the first vector operand
  u8 flags = 0;
  u8 wide = 0;      // bit i: the address in s[i] is 64 bits wide
  u8 negate = 0;    // bit i: predicate s[i] is negated
  u8 x = 0, y = 0;  // what a handler needs besides: sizes, comparison codes …
  u16 z = 0;
};
static_assert(sizeof(Ins) == 64);

// Special registers that hold one value per warp or lane for as long as a CTA runs.
enum class Special : u8 {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  dynamic_smem_size,
  total_smem_size,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  is_explicit_cluster,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  count,
};

// The address windows of a generic pointer; everything below is global memory at its host address.
inline constexpr u64 kSharedWindow = 1ull << 60;
inline constexpr u64 kLocalWindow = 2ull << 60;
inline constexpr u64 kParamWindow = 3ull << 60;
inline constexpr u64 kWindowMask = 3ull << 60;
inline constexpr u32 kSharedBase =
    1024;  // the first valid shared address: the hardware keeps the kilobyte below it
// A shared::cluster address has the rank of its CTA plus one in the upper byte; 0 there means one's own CTA.
inline constexpr int kRankShift = 24;
inline constexpr u32 kOffsetMask = (1u << kRankShift) - 1;

struct ParamInfo {
  u64 offset = 0;
  u64 bytes = 0;
};

// A rule that decoding alone shows to be broken; reported when the instruction first runs.
struct StaticFinding {
  u32 ins = 0;
  std::string message;
};

// An instruction's role for loads from shared memory that may not be done yet (machine/late_loads.hpp).
struct LoadStep {
  u8 bytes = 0;             // not 0: it is such a load, of so many bytes from each address
  u8 lanes = 0;             // lanes whose addresses count, as in ldmatrix; 0: all lanes that take part
  bool generic = false;     // the address tells whether it is shared memory
  bool copies = false;      // it only renames values, so there may be no machine code for it
  std::vector<u32> reads;   // registers that may hold a loaded value
  std::vector<u32> writes;  // registers that may have held one, or will
};

struct Program {
  Module module;
  std::string entry;
  std::deque<std::string> names;      // the statements' operands refer to these and to the text
  std::vector<Statement> statements;  // of the entry, with called functions pasted in
  std::vector<Ins> code;
  std::vector<u32> statement_of;     // code index to statement; kNoTarget for what the decoder added
  std::vector<OpClass> class_of;     // by code index
  std::vector<u32> lists;            // operand rows of vector operands
  std::vector<std::byte> constants;  // rows; the first one starts at a multiple of 64 bytes
  std::size_t constants_start = 0;
  u32 row_bytes = 0;  // registers of a warp
  u32 predicates = 1;
  std::vector<std::pair<Special, u32>> specials;  // each with its row
  std::vector<ParamInfo> params;
  u64 param_bytes = 0;
  u32 static_shared = 0;   // bytes after kSharedBase
  u32 dynamic_shared = 0;  // address where dynamic shared memory starts
  u32 local_bytes = 0;     // of a thread
  u32 max_threads = 0;
  u32 min_ctas = 1;
  std::array<u32, 3> required_block{}, required_cluster{};  // zeros: the launch decides
  std::vector<std::byte> globals;                           // module variables, those of .const last
  u64 const_begin = 0;                                      // where the latter begin
  std::vector<StaticFinding> findings;
  bool checked = false;
  // Rows that an instruction with kTouchesAccumulator names and that a wgmma owns for a while. Those of code
  // index k are touched[touched_from[k]] up to touched_from[k + 1]. Empty if there is no wgmma.
  std::vector<u32> touched, touched_from;
  // The LoadSteps of instructions with kTouchesLoaded, and by code index which one applies. Empty if no write
  // can overtake loads.
  std::vector<LoadStep> load_steps;
  std::vector<u32> load_step_of;

  [[nodiscard]] std::span<const u32> touched_rows(u32 ins) const {
    if (touched_from.empty()) return {};
    return std::span(touched).subspan(touched_from[ins], touched_from[ins + 1] - touched_from[ins]);
  }

  [[nodiscard]] const Statement* statement(u32 ins) const {
    u32 index = statement_of[ins];
    return index == kNoTarget ? nullptr : &statements[index];
  }
};

}  // namespace flashjit::emulator
