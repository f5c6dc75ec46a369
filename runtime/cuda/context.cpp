// Opens a device by name, and reads its Target.
#include "runtime/cuda/context.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "flashjit/error.hpp"

namespace flashjit::runtime {
namespace {

constexpr int kOldestCapability = 75;  // Turing

// The number in "cuda:N"; -1 for "cuda".
int parse_index(std::string_view name) {
  if (name == "cuda") return -1;
  constexpr std::string_view kPrefix = "cuda:";
  if (name.substr(0, kPrefix.size()) == kPrefix) {
    const std::string_view digits = name.substr(kPrefix.size());
    unsigned index = 0;  // unsigned, so that a minus sign is refused
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error != std::errc::invalid_argument && end == digits.data() + digits.size()) {
      if (error == std::errc() && index <= std::numeric_limits<int>::max()) return static_cast<int>(index);
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("device is \"{}\", whose number is too large for any", name));
    }
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("device is \"{}\", may be cuda, cuda:N or emulated:sm_XX", name));
}

}  // namespace

std::shared_ptr<const Context> Context::open(std::string_view name) {
  const int wanted = parse_index(name);
  const Driver& driver = cuda_driver();
  int count = 0;
  driver.check(driver.device_count(&count), "cuDeviceGetCount");
  if (count == 0) driver.fail(CUDA_ERROR_NO_DEVICE, "opening a GPU");
  if (wanted >= count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device is \"{}\", but {} visible", name,
                            count == 1 ? std::string("only cuda:0 is")
                                       : fmt::format("only cuda:0 to cuda:{} are", count - 1)),
                "CUDA_VISIBLE_DEVICES may hide some");
  }

  const std::shared_ptr<Context> context(new Context);
  context->driver_ = &driver;
  CUcontext current = nullptr;
  driver.check(driver.current(&current), "cuCtxGetCurrent");
  CUdevice current_device = -1;
  if (current != nullptr) driver.check(driver.current_device(&current_device), "cuCtxGetDevice");

  if (wanted >= 0) {
    driver.check(driver.device(&context->device_, wanted), "cuDeviceGet");
  } else if (current != nullptr) {
    context->device_ = current_device;
  } else {
    driver.check(driver.device(&context->device_, 0), "cuDeviceGet");
  }

  unsigned flags = 0;
  int active = 0;
  driver.check(driver.primary_state(context->device_, &flags, &active), "cuDevicePrimaryCtxGetState");
  const bool use_current = current != nullptr && current_device == context->device_;
  if (use_current && active == 0) {
    context->context_ = current;  // made by the caller, who keeps it alive
    return context;
  }
  CUcontext primary = nullptr;
  driver.check(driver.primary_retain(&primary, context->device_),
               fmt::format("cuDevicePrimaryCtxRetain of {}", name));
  context->context_ = primary;
  context->retained_ = true;
  if (use_current && current != primary) {
    context->context_ = current;
    context->retained_ = false;
    driver.check(driver.primary_release(context->device_), "cuDevicePrimaryCtxRelease");
  }
  return context;
}

Context::~Context() {
  // At exit the driver may end before us and return an error; nothing is left to release then.
  if (retained_) static_cast<void>(driver_->primary_release(device_));
}

int capability_of_device(const Driver& driver, CUdevice device) {
  int major = 0;
  int minor = 0;
  driver.check(driver.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
               "cuDeviceGetAttribute");
  driver.check(driver.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
               "cuDeviceGetAttribute");
  return 10 * major + minor;
}

std::string arch_of_capability(int capability) {
  return fmt::format("sm_{}{}", capability, capability == 90 ? "a" : "");
}

Target target_of_device(const Driver& driver, CUdevice device) {
  const auto get = [&](CUdevice_attribute attribute) {
    int value = 0;
    driver.check(driver.device_attribute(&value, attribute, device), "cuDeviceGetAttribute");
    return value;
  };
  Target target;
  target.capability = capability_of_device(driver, device);
  target.arch = arch_of_capability(target.capability);
  if (target.capability < kOldestCapability) {
    throw Error(ErrorCode::unsupported,
                fmt::format("cuda:{} ({}) is {}; flashjit needs sm_{} (Turing) or later", device,
                            name_of_device(driver, device), target.arch, kOldestCapability),
                "the device \"emulated:sm_75\" needs no GPU");
  }
  target.sm_count = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  target.shared_per_cta = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  target.shared_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  target.shared_reserved = get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  target.registers_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  target.threads_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  target.ctas_per_sm = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  target.l2_bytes = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  // Two transfers per clock; the clock is in kHz, the width in bits.
  target.memory_gbps = 2e-6 * get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) *
                       get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
  return target;
}

std::string name_of_device(const Driver& driver, CUdevice device) {
  std::array<char, 256> name{};
  driver.check(driver.device_name(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
  return name.data();
}

std::string pci_bus_id_of_device(const Driver& driver, CUdevice device) {
  std::array<char, 32> id{};
  driver.check(driver.device_bus_id(id.data(), static_cast<int>(id.size()), device), "cuDeviceGetPCIBusId");
  return id.data();
}

}  // namespace flashjit::runtime
