// A shared library that is opened at run time and stays open.
#pragma once

#include <filesystem>
#include <string>

namespace flashjit::runtime {

// Never closed: libcuda and libnvrtc start threads and register exit handlers of their own, so that dlclose
// could pull code away from under them. The loader counts references, so opening one twice costs nothing.
class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // By path or by soname. On failure the object is false and error() is the loader's sentence.
  explicit DynamicLibrary(const std::string& name);

  explicit operator bool() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] std::string path() const;  // of the file that the loader chose
  [[nodiscard]] void* symbol(const char* name) const;

  // Sets `function` to the symbol, or to null; says whether it is there.
  template <class Function>
  bool resolve(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string error_;
};

// The GNU build id in a library's ELF notes, as hex digits: it names the library's bytes without reading them
// all. Empty where there is none.
std::string gnu_build_id(const std::filesystem::path& library);

}  // namespace flashjit::runtime
