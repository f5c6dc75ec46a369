// Makes a compile error readable: the log with the source lines that it names, and the files to look at.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "generator/render.hpp"

namespace flashjit::runtime {

// The log, with numbered lines of the source (or of the PTX, for ptxas's messages) below each message that
// names one, and with the template that the line came from. After the first few messages only the log's own
// text follows.
std::string annotate(std::string_view log, const KernelSource& source, std::string_view ptx);

// The comment at the top of a rendered kernel (problem, schedule, target), a few lines at most.
std::string header_comment(std::string_view source);

// Where failed compiles leave their source: FLASHJIT_DUMP_DIR, else a private directory in the temporary one.
// That directory is made at first use and never removed, so that the user can read it.
class DumpDirectory {
 public:
  // Writes ENTRY.cu, ENTRY.log and, if there is any PTX, ENTRY.ptx. Returns the path of the first. If writing
  // fails, returns a sentence that says so and throws nothing, since the compile error matters more.
  std::string write(const KernelSource& source, std::string_view log, std::string_view ptx);

 private:
  std::mutex mutex_;
  std::filesystem::path directory_;
};

}  // namespace flashjit::runtime
