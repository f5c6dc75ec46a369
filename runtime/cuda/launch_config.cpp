#include "runtime/cuda/launch_config.hpp"

namespace flashjit::runtime {

LaunchConfig::LaunchConfig(const Launch& launch, Stream stream) {
  config_.gridDimX = launch.grid;
  config_.gridDimY = config_.gridDimZ = 1;
  config_.blockDimX = launch.threads;
  config_.blockDimY = config_.blockDimZ = 1;
  config_.sharedMemBytes = launch.shared_bytes;
  config_.hStream = stream;
  config_.attrs = attributes_.data();
  if (launch.cluster > 1) {
    CUlaunchAttribute& cluster = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    cluster.value.clusterDim.x = launch.cluster;
    cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  }
  if (launch.cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1;
}

CUlaunchAttribute& LaunchConfig::add(CUlaunchAttributeID id) {
  CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
  attribute.id = id;
  return attribute;
}

}  // namespace flashjit::runtime
