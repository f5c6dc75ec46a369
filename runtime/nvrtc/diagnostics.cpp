// Compile errors with numbered source lines, and the dump of a failed source.
#include "runtime/nvrtc/diagnostics.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace flashjit::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kExcerpts = 8;  // how many messages get source lines
constexpr int kContext = 2;   // lines above and below
constexpr int kHeaderLines = 8;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The number right after `marker`; 0 if there is none.
int number_after(std::string_view line, std::string_view marker) {
  const std::size_t at = line.find(marker);
  int value = 0;
  if (at != std::string_view::npos) {
    std::from_chars(line.data() + at + marker.size(), line.data() + line.size(), value);
  }
  return value;
}

void add_excerpt(std::string& to, const std::vector<std::string_view>& lines, int line) {
  const int first = std::max(1, line - kContext);
  const int last = std::min(static_cast<int>(lines.size()), line + kContext);
  for (int i = first; i <= last; ++i) {
    to += fmt::format("  {} {:5} | {}\n", i == line ? '>' : ' ', i, lines[static_cast<std::size_t>(i) - 1]);
  }
}

// Creates the file anew, readable only by its owner, since a dump may be confidential.
bool write_private(const fs::path& path, std::string_view text) {
  unlink(path.c_str());
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (file < 0) return false;
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  return close(file) == 0 && done == text.size();
}

fs::path make_directory() {
  if (const char* given = std::getenv("FLASHJIT_DUMP_DIR"); given != nullptr && *given != '\0') {
    std::error_code ignored;  // if this fails, writing fails too and reports it
    fs::create_directories(given, ignored);
    return given;
  }
  std::error_code ignored;
  fs::path temporary = fs::temp_directory_path(ignored);
  std::string pattern = ((temporary.empty() ? fs::path("/tmp") : temporary) / "flashjit-XXXXXX").string();
  return mkdtemp(pattern.data()) != nullptr ? fs::path(pattern) : fs::path();
}

}  // namespace

std::string annotate(std::string_view log, const KernelSource& source, std::string_view ptx) {
  const std::vector<std::string_view> source_lines = lines_of(source.text);
  const std::vector<std::string_view> ptx_lines = lines_of(ptx);
  const std::string file_mark = source.entry + ".cu(";
  std::string out;
  int excerpts = 0;
  for (const std::string_view text : lines_of(log)) {
    out += text;
    out += '\n';
    if (excerpts == kExcerpts) continue;
    const int line = number_after(text, file_mark);
    const int ptx_line = text.find("ptxas") != std::string_view::npos ? number_after(text, ", line ") : 0;
    if (line > 0 && line <= static_cast<int>(source_lines.size())) {
      ++excerpts;
      if (const auto at = static_cast<std::size_t>(line) - 1;
          at < source.origins.size() && !source.origins[at].file.empty()) {
        out += fmt::format("  templates/{}:{}\n", source.origins[at].file, source.origins[at].line);
      }
      add_excerpt(out, source_lines, line);
    } else if (ptx_line > 0 && ptx_line <= static_cast<int>(ptx_lines.size())) {
      ++excerpts;
      add_excerpt(out, ptx_lines, ptx_line);
    }
  }
  return out;
}

std::string header_comment(std::string_view source) {
  std::string out;
  int lines = 0;
  for (const std::string_view line : lines_of(source)) {
    if (line.substr(0, 2) != "//" || lines++ == kHeaderLines) break;
    out += line;
    out += '\n';
  }
  return out;
}

std::string DumpDirectory::write(const KernelSource& source, std::string_view log, std::string_view ptx) {
  const std::lock_guard lock(mutex_);
  if (directory_.empty()) directory_ = make_directory();
  const fs::path stem = directory_ / source.entry;
  const auto with = [&stem](const char* extension) { return fs::path(stem).concat(extension); };
  if (directory_.empty() || !write_private(with(".cu"), source.text) || !write_private(with(".log"), log) ||
      (!ptx.empty() && !write_private(with(".ptx"), ptx))) {
    return fmt::format("not kept: {}: {}; FLASHJIT_DUMP_DIR names another directory", stem.string(),
                       std::strerror(errno));
  }
  return with(".cu").string();
}

}  // namespace flashjit::runtime
