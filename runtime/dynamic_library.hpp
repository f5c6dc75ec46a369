// A shared library that is opened at run time and stays open.
#pragma once

#include <filesystem>
#include <string>

namespace flashjit::runtime {

// Never closed: libcuda and libnvrtc start threads and register exit handlers of their own, whose code
// dlclose could unload. The loader counts references, so opening a library twice costs nothing.
class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // By path or by soname. On failure the object is false, and error() is the loader's message.
  explicit DynamicLibrary(const std::string& name);

  explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::string path() const;  // of the file that the loader chose
  [[nodiscard]] void* symbol(const char* name) const;

  // Sets `function` to the symbol, or to null. Returns whether the symbol exists.
  template <class Function>
  bool resolve(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string error_;
};

// The GNU build id from a library's ELF notes, in hex digits. It identifies the library's bytes, but reads
// only a few of them. Empty if there is none.
std::string gnu_build_id(const std::filesystem::path& library);

}  // namespace flashjit::runtime
