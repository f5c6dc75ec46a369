#include "emulator/machine/async_queue.hpp"

#include <algorithm>

#include "emulator/machine/machine.hpp"

namespace flashjit::emulator {
namespace {

bool is_awaited(const Cluster& cluster, const CopyJob& job) {
  for (const Cta& cta : cluster.ctas) {
    for (const Warp& warp : cta.warps) {
      if (warp.wait == Wait::mbarrier && warp.wait_cta == job.barrier_cta && warp.wait_address == job.barrier)
        return true;
    }
  }
  return false;
}

}  // namespace

void AsyncQueue::reset(Policy policy, u32 late_quarter) {
  jobs_.clear();
  policy_ = policy;
  late_quarter_ = late_quarter;
}

bool AsyncQueue::is_late(const CopyJob& job) const {
  if (policy_ != Policy::partial) return policy_ == Policy::late;
  return job.stores() || (job.barrier >> 3 & 3) == late_quarter_;
}

void AsyncQueue::issue(Cluster& cluster, CopyJob job) {
  announce(cluster, job);
  jobs_.push_back(std::move(job));
  if (policy_ == Policy::early || (policy_ == Policy::partial && !is_late(jobs_.back())))
    run(cluster, jobs_.size() - 1);
}

void AsyncQueue::step(Cluster& cluster) {
  if (jobs_.empty() || (policy_ != Policy::random && policy_ != Policy::reversed)) return;
  if ((cluster.random() & 3) != 0) return;
  run(cluster, policy_ == Policy::reversed ? jobs_.size() - 1 : cluster.random() % jobs_.size());
}

bool AsyncQueue::advance(Cluster& cluster) {
  if (jobs_.empty()) return false;
  std::size_t next = policy_ == Policy::reversed ? jobs_.size() - 1 : cluster.random() % jobs_.size();
  if (policy_ == Policy::late || policy_ == Policy::partial) {
    // Prefer a load that somebody waits for, then a load that nobody waits for yet, and a store last.
    std::size_t best = 0;
    for (std::size_t k = 0, at = next; k < jobs_.size(); ++k, at = at + 1 == jobs_.size() ? 0 : at + 1) {
      const std::size_t urgency = jobs_[at].stores() ? 1 : is_awaited(cluster, jobs_[at]) ? 3 : 2;
      if (urgency > best) next = at;
      best = std::max(best, urgency);
    }
  }
  run(cluster, next);
  return true;
}

void AsyncQueue::wait_bulk(Cluster& cluster, const Warp& warp, u32 lanes, int kept, bool read_only) {
  for (std::size_t k = 0; k < jobs_.size();) {
    CopyJob& job = jobs_[k];
    const bool due = job.stores() && job.agent == warp.agent && (lanes >> job.lane & 1) != 0 &&
                     job.group < warp.bulk_groups[job.lane] - kept;
    if (due && !read_only) {
      run(cluster, k);
      continue;
    }
    if (due && job.read.empty()) read_source(cluster, job);
    ++k;
  }
}

bool AsyncQueue::has_store_of(u32 agent) const {
  for (const CopyJob& job : jobs_) {
    if (job.stores() && job.agent == agent && job.read.empty()) return true;
  }
  return false;
}

bool AsyncQueue::moves_for(const Cluster& cluster, const Cta& cta) const {
  const auto rank = static_cast<u32>(&cta - cluster.ctas.data());
  for (const CopyJob& job : jobs_) {
    const bool loads = job.kind == CopyJob::Kind::tensor_load || job.kind == CopyJob::Kind::bulk_load ||
                       job.kind == CopyJob::Kind::lane_store;
    if (loads && (job.multicast == 0 ? job.cta == &cta : (job.multicast >> rank & 1) != 0)) return true;
    if (job.kind == CopyJob::Kind::bulk_shared && (job.cta == &cta || job.to_cta == &cta)) return true;
  }
  return false;
}

void AsyncQueue::run(Cluster& cluster, std::size_t index) {
  CopyJob job = std::move(jobs_[index]);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(index));
  if (job.stores() && job.read.empty()) read_source(cluster, job);
  perform(cluster, job);
}

}  // namespace flashjit::emulator
