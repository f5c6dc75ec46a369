// What TMA, bulk copies and st.async do: move boxes of tensors and runs of bytes between global and shared
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/machine/bulk_reduction.hpp"
#include "emulator/machine/lane_copies.hpp"
#include "emulator/machine/machine.hpp"
#include "emulator/machine/tensor_map.hpp"

namespace flashjit::emulator {
namespace {

constexpr u32 kPiece = 16;  // bytes that move together
constexpr u32 kAhead = 16;  // rows of a box that are fetched before they are needed

Warp& issuer(Cluster& cluster, const CopyJob& job) {
  return cluster.warp_of(job.agent);
}

// Calls visit(shared address, global address, bytes inside the tensor) for each 16-byte piece of the box.
// Rows follow one another, with dimension 1 fastest; the swizzle is applied to the shared address. If
// whole_row is given, rows that are entirely inside the tensor go to whole_row(shared address before the
// swizzle, global address, bytes) instead.
template <class Visit, class Row>
void for_each_piece(const CopyJob& job, Visit visit, Row whole_row) {
  const EncodedMap& map = *job.map;
  const u32 row = row_of(map), pitch = pitch_of(map);
  const u64 rows = rows_of(map);
  u32 index[5] = {};
  for (u32 r = 0; r < rows; ++r) {
    bool inside = true;
    u64 global = map.base;
    for (u32 d = 1; d < map.rank; ++d) {
      const i64 at = i64{job.coordinates[d]} + index[d];
      inside &= at >= 0 && at < map.size[d];
      global += static_cast<u64>(at) * map.stride[d - 1];
    }
    const i64 begin = job.coordinates[0], length = row / map.element_bytes;
    const bool whole = inside && begin >= 0 && begin + length <= map.size[0] && row % kPiece == 0;
    for (u32 x = 0; x < row; x += 64) __builtin_prefetch(at_address(global + kAhead * map.stride[0] + x));
    const bool taken =
        whole && whole_row(job.shared + r * pitch, global + static_cast<u64>(begin * map.element_bytes), row);
    for (u32 x = 0; x < row && !taken; x += kPiece) {
      const u32 shared = swizzle(job.shared + r * pitch + x, map.swizzle_bits);
      const i64 first = i64{job.coordinates[0]} + x / map.element_bytes;
      const i64 left = (map.size[0] - first) * map.element_bytes;
      // The part of a box before the tensor's start is cut off its left side, in whole elements.
      const i64 skip = first < 0 ? std::min<i64>(kPiece, -first * map.element_bytes) : 0;
      const i64 end = std::clamp<i64>(left, 0, kPiece);
      const u32 from = static_cast<u32>(skip), to = inside ? static_cast<u32>(std::max(end, skip)) : from;
      visit(shared, global + static_cast<u64>(first * map.element_bytes) + from, from, to - from);
    }
    for (u32 d = 1; d < map.rank; ++d) {
      if (++index[d] < map.box[d]) break;
      index[d] = 0;
    }
  }
}

template <class Visit>
void for_each_piece(const CopyJob& job, Visit visit) {
  for_each_piece(job, visit, [](u32, u64, u32) { return false; });
}

// The extent in shared memory, from the first byte to the last.
u64 extent_of(const CopyJob& job) {
  return job.map == nullptr ? job.bytes : rows_of(*job.map) * pitch_of(*job.map);
}

// The bytes that move, for a job whose extent is in shared memory.
u32 bytes_of(const CopyJob& job) {
  return job.map == nullptr ? job.bytes : static_cast<u32>(rows_of(*job.map) * row_of(*job.map));
}

// Calls visit(address, bytes) for each run of shared memory that a load writes.
template <class Visit>
void for_each_run(const CopyJob& job, u32 address, Visit visit) {
  if (extent_of(job) == bytes_of(job)) return visit(address, bytes_of(job));
  const u32 row = row_of(*job.map), pitch = pitch_of(*job.map);
  for (u32 r = 0; r < rows_of(*job.map); ++r) {
    for (u32 x = 0; x < row; x += kPiece)
      visit(swizzle(address + r * pitch + x, job.map->swizzle_bits), kPiece);
  }
}

// Calls visit(address, bytes) for each run of shared memory that a store reads: bytes outside the tensor are
// not stored, so they need not have been written.
template <class Visit>
void for_each_source(const CopyJob& job, Visit visit) {
  if (job.map == nullptr) return visit(job.shared, job.bytes);
  for_each_piece(job, [&](u32 shared, u64, u32 skip, u32 count) {
    if (count != 0) visit(shared + skip, count);
  });
}

void check_global_range(Warp& warp, const CopyJob& job, u64 address, u32 bytes, bool reads) {
  if (bytes == 0) return;
  check_global(warp, *job.ins, address, bytes, 1, job.lane);
  if (reads && checking(warp)) check_written(warp, *job.ins, address, bytes, ~0ull, job.lane);
}

void mark_global(const Warp& warp, u64 address, u32 bytes) {
  if (bytes != 0 && warp.known != nullptr && warp.known->track) warp.known->mark(address, bytes);
}

// Calls visit for each CTA that a load goes to.
template <class Visit>
void for_each_target(Cluster& cluster, const CopyJob& job, Visit visit) {
  if (job.multicast == 0) return visit(*job.cta, *job.barrier_cta);
  for (u32 rank = 0; rank < cluster.ctas.size(); ++rank) {
    if ((job.multicast >> rank & 1) != 0) visit(cluster.ctas[rank], cluster.ctas[rank]);
  }
}

void complete(Cluster& cluster, const CopyJob& job, Cta& cta, i64 bytes) {
  Warp& warp = issuer(cluster, job);
  if (ordering(warp)) cluster.mbarriers.join(cta, job.barrier, job.clock.data(), cluster.clock_width);
  if (const char* wrong = mbarrier_arrive(cluster, cta, job.barrier, 0, -bytes); wrong != nullptr) {
    stop(warp, *job.ins, FindingKind::barrier, 1u << job.lane, wrong);
  }
}

}  // namespace

void announce(Cluster& cluster, const CopyJob& job) {
  // Its copies were checked one by one, and st.async as it was issued.
  if (job.kind == CopyJob::Kind::lane_arrival || job.kind == CopyJob::Kind::lane_store) return;
  Warp& warp = issuer(cluster, job);
  const Agent agent{job.agent, job.clock.data(), job.lane, warp.met};
  const bool check = checking(warp);
  const u32 align = job.map != nullptr ? 128 : 16;
  const bool to_shared = job.barrier_cta != nullptr;
  if (job.map == nullptr && job.bytes % 16 != 0) {
    stop(warp, *job.ins, FindingKind::misaligned, 1u << job.lane,
         fmt::format("a bulk copy of {} bytes, must be a multiple of 16", job.bytes));
  }
  check_shared(warp, *job.ins, *job.cta, job.shared, extent_of(job), align, job.lane);
  const u32 bytes = bytes_of(job);
  if (job.map == nullptr && job.kind != CopyJob::Kind::bulk_shared) {
    if (job.global % 16 != 0) {
      stop(warp, *job.ins, FindingKind::misaligned, 1u << job.lane,
           fmt::format("global address 0x{:x} is no multiple of 16", job.global));
    }
    check_global(warp, *job.ins, job.global, bytes, 1, job.lane);
  }
  if (job.map != nullptr && job.map->swizzle_bits != 0 &&
      (job.shared & ((128u << job.map->swizzle_bits) - 1)) != 0 && row_of(*job.map) != pitch_of(*job.map)) {
    // Only a row of full width is swizzled the same from every 128-byte boundary.
    finding(
        warp, *job.ins, FindingKind::descriptor, 1u << job.lane,
        fmt::format("the shared address at offset {} does not begin a pattern of the map's {}-byte swizzle",
                    job.shared - kSharedBase, 16u << job.map->swizzle_bits));
  }
  if (to_shared) {
    for_each_target(cluster, job, [&](Cta& cta, Cta& barrier_cta) {
      check_running(warp, *job.ins, cta);
      check_shared(warp, *job.ins, barrier_cta, job.barrier, 8, 8, job.lane);
      if (!check) return;
      Cta& to = job.kind == CopyJob::Kind::bulk_shared ? *job.to_cta : cta;
      const u32 at = job.kind == CopyJob::Kind::bulk_shared ? job.to_shared : job.shared;
      if (!barrier_cta.state.is_barrier(job.barrier)) {
        stop(warp, *job.ins, FindingKind::barrier, 1u << job.lane,
             fmt::format("there is no mbarrier at offset {}", job.barrier - kSharedBase));
      }
      if (ordering(warp)) {
        u32 writer = 0;
        const u32 made = barrier_cta.state.barrier_clock(job.barrier, writer);
        if (job.clock[2 * cluster.agents + writer] < made && cluster.init_fenced[writer] < made) {
          finding(warp, *job.ins, FindingKind::proxy_fence, 1u << job.lane,
                  fmt::format("the mbarrier at offset {} was initialised with no fence.mbarrier_init or "
                              "fence.proxy.async after it",
                              job.barrier - kSharedBase));
          cluster.init_fenced[writer] = made;
        }
      }
      for_each_run(job, at, [&](u32 address, u32 run) {
        to.state.begin_write(warp, *job.ins, agent, Access::asynchronous, address, run);
      });
    });
  }
  if (!check) return;
  if (job.stores() || job.kind == CopyJob::Kind::bulk_shared) {
    for_each_source(job, [&](u32 address, u32 count) {
      job.cta->state.begin_read(warp, *job.ins, agent, address, count);
    });
  }
}

void perform(Cluster& cluster, const CopyJob& job) {
  Warp& warp = issuer(cluster, job);
  const Agent agent{job.agent, job.clock.data()};
  const bool check = checking(warp);
  const u32 bytes = bytes_of(job);
  Counters* counters = cluster.counters;
  switch (job.kind) {
    case CopyJob::Kind::tensor_load:
      for_each_piece(
          job,
          [&](u32 shared, u64 global, u32 skip, u32 count) {
            check_global_range(warp, job, global, count, true);
            if (counters != nullptr) counters->tma_read += count;
            for_each_target(cluster, job, [&](Cta& cta, Cta&) {
              std::memset(cta.shared + shared, 0, kPiece);
              std::memcpy(cta.shared + shared + skip, at_address(global), count);
            });
          },
          [&](u32 shared, u64 global, u32 row) {
            for (u32 x = 0; x < row; x += 64)
              check_global_range(warp, job, global + x, std::min(row - x, 64u), true);
            if (counters != nullptr) counters->tma_read += row;
            const u32 bits = job.map->swizzle_bits;
            for_each_target(cluster, job, [&](Cta& cta, Cta&) {
              std::byte* to = cta.shared;
              for (u32 x = 0; x < row; x += kPiece)
                std::memcpy(to + swizzle(shared + x, bits), at_address(global + x), kPiece);
            });
            return true;
          });
      for_each_target(cluster, job, [&](Cta& cta, Cta& barrier_cta) {
        ++cta.matrix_epoch;
        if (check) {
          for_each_run(job, job.shared, [&](u32 address, u32 run) {
            cta.state.finish_write(agent, Access::asynchronous, address, run, job.map->swizzle_bits + 1u);
          });
        }
        complete(cluster, job, barrier_cta, bytes);
      });
      break;
    case CopyJob::Kind::tensor_store:
      for_each_piece(job, [&](u32 shared, u64 global, u32 skip, u32 count) {
        check_global_range(warp, job, global, count, job.reduction != Reduction::none);
        write_global(job, at_address(global), job.read.data() + (shared - job.shared) + skip, count);
        mark_global(warp, global, count);
        if (counters != nullptr) counters->tma_written += count;
      });
      break;
    case CopyJob::Kind::bulk_load:
      for (u32 k = 0; k < bytes; k += kPiece) check_global_range(warp, job, job.global + k, kPiece, true);
      if (counters != nullptr) counters->tma_read += bytes;
      for_each_target(cluster, job, [&](Cta& cta, Cta& barrier_cta) {
        std::memcpy(cta.shared + job.shared, at_address(job.global), bytes);
        ++cta.matrix_epoch;
        if (check) cta.state.finish_write(agent, Access::asynchronous, job.shared, bytes);
        complete(cluster, job, barrier_cta, bytes);
      });
      break;
    case CopyJob::Kind::bulk_store:
      check_global_range(warp, job, job.global, bytes, false);
      write_global(job, at_address(job.global), job.read.data(), bytes);
      mark_global(warp, job.global, bytes);
      if (counters != nullptr) counters->tma_written += bytes;
      break;
    case CopyJob::Kind::bulk_shared:
      write_global(job, job.to_cta->shared + job.to_shared, job.cta->shared + job.shared, bytes);
      ++job.to_cta->matrix_epoch;
      if (check) {
        job.cta->state.finish_read(agent, job.shared, bytes);
        job.to_cta->state.finish_write(agent, Access::asynchronous, job.to_shared, bytes);
      }
      complete(cluster, job, *job.barrier_cta, bytes);
      break;
    case CopyJob::Kind::lane_store:
      std::memcpy(job.cta->shared + job.shared, job.read.data(), bytes);
      ++job.cta->matrix_epoch;
      if (check) job.cta->state.finish_write(agent, Access::remote, job.shared, bytes);
      complete(cluster, job, *job.barrier_cta, bytes);
      break;
    case CopyJob::Kind::lane_arrival:
      arrive_for_lane(cluster, job);
      break;
  }
}

void read_source(Cluster& cluster, CopyJob& job) {
  const std::byte* from = job.cta->shared + job.shared;
  job.read.assign(from, from + extent_of(job));
  if (!checking(issuer(cluster, job))) return;
  const Agent agent{job.agent, job.clock.data()};
  for_each_source(job, [&](u32 address, u32 count) { job.cta->state.finish_read(agent, address, count); });
}

}  // namespace flashjit::emulator
