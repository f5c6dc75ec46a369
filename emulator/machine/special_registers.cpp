#include "emulator/machine/special_registers.hpp"

namespace flashjit::emulator {

u32 special_value(const Cta& cta, const Warp& warp, Special special, u32 lane) {
  const LaunchContext& launch = *cta.launch;
  const u32 thread = warp.index * kLanes + lane;
  const u32* block = launch.block;
  const u32* grid = launch.grid;
  switch (special) {
    case Special::tid_x:
      return thread % block[0];
    case Special::tid_y:
      return thread / block[0] % block[1];
    case Special::tid_z:
      return thread / block[0] / block[1];
    case Special::ntid_x:
      return block[0];
    case Special::ntid_y:
      return block[1];
    case Special::ntid_z:
      return block[2];
    case Special::ctaid_x:
      return cta.id[0];
    case Special::ctaid_y:
      return cta.id[1];
    case Special::ctaid_z:
      return cta.id[2];
    case Special::nctaid_x:
      return grid[0];
    case Special::nctaid_y:
      return grid[1];
    case Special::nctaid_z:
      return grid[2];
    case Special::laneid:
      return lane;
    case Special::warpid:
      return warp.index;
    case Special::nwarpid:
      return static_cast<u32>(cta.warps.size());
    case Special::smid:
      return (cta.id[0] + grid[0] * (cta.id[1] + grid[1] * cta.id[2])) % launch.sm_count;
    case Special::nsmid:
      return launch.sm_count;
    case Special::gridid:
      return 1;
    case Special::dynamic_smem_size:
      return launch.shared_bytes;
    case Special::total_smem_size:
      return cta.shared_end - kSharedBase;
    case Special::cluster_ctaid_x:
      return cta.rank;
    case Special::cluster_ctaid_y:
    case Special::cluster_ctaid_z:
      return 0;
    case Special::cluster_nctaid_x:
      return launch.cluster;
    case Special::cluster_nctaid_y:
    case Special::cluster_nctaid_z:
      return 1;
    case Special::cluster_ctarank:
      return cta.rank;
    case Special::cluster_nctarank:
      return launch.cluster;
    case Special::clusterid_x:
      return cta.id[0] / launch.cluster;
    case Special::clusterid_y:
      return cta.id[1];
    case Special::clusterid_z:
      return cta.id[2];
    case Special::nclusterid_x:
      return grid[0] / launch.cluster;
    case Special::nclusterid_y:
      return grid[1];
    case Special::nclusterid_z:
      return grid[2];
    case Special::is_explicit_cluster:
      return launch.cluster > 1 ? 1 : 0;
    case Special::lanemask_eq:
      return 1u << lane;
    case Special::lanemask_lt:
      return (1u << lane) - 1;
    case Special::lanemask_le:
      return ((1u << lane) - 1) | 1u << lane;
    case Special::lanemask_gt:
      return ~(((1u << lane) - 1) | 1u << lane);
    case Special::lanemask_ge:
      return ~((1u << lane) - 1);
    default:
      return 0;
  }
}

}  // namespace flashjit::emulator
