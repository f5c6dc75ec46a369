// The end of bulk copies out of shared memory (PTX ISA, "cp.async.bulk.wait_group").
#pragma once

// Returns once the writes of all of this thread's groups are complete.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
