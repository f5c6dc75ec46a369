// Makes a compile error readable: the log with the lines it speaks of, and the files to look at.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "generator/render.hpp"

namespace flashjit::runtime {

// The log, with numbered lines of source (or PTX, for ptxas's messages) below each message that names one,
// and the template that the line came from. After the first few messages only the log's own words.
std::string annotate(std::string_view log, const KernelSource& source, std::string_view ptx);

// The comment on top of a rendered kernel (problem, schedule, target), a few lines at most.
std::string header_comment(std::string_view source);

// Where failed compiles leave their source: FLASHJIT_DUMP_DIR, else a private directory below the temporary
// one, made on first use and left behind for the reader.
class DumpDirectory {
 public:
  // Writes ENTRY.cu, ENTRY.log and, if there is any, ENTRY.ptx; returns the path of the first, or, where
  // writing fails, a sentence that says so: the error that is being reported matters more.
  std::string write(const KernelSource& source, std::string_view log, std::string_view ptx);

 private:
  std::mutex mutex_;
  std::filesystem::path directory_;
};

}  // namespace flashjit::runtime
