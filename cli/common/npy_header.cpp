// The header of a .npy file (numpy.lib.format): magic, version, length, then {'descr': …, 'fortran_order': …,
// 'shape': …}.
#include "cli/common/npy_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "flashjit/error.hpp"

namespace flashjit::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMostDimensions = 4;
constexpr std::size_t kMostElements = std::size_t{1} << 40;  // of 4 bytes each: no byte count overflows
constexpr std::string_view kDtypes = "'<f2' (fp16), '<f4' (fp32), 'V2' or '<u2' (bf16)";

// Reads the dictionary by a small grammar of its own: three known keys, each once, in any order, each with
// the values that it may have. Nothing is evaluated.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        once(dtype_.has_value(), key);
        dtype_ = dtype();
      } else if (key == "fortran_order") {
        once(fortran_.has_value(), key);
        fortran_ = boolean();
      } else if (key == "shape") {
        once(shape_.has_value(), key);
        shape_ = shape();
      } else {
        bad(fmt::format("its header has a key '{}' that no .npy file has", printable(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!text_.empty()) bad("something follows the dictionary in its header");
    if (!dtype_ || !fortran_ || !shape_) bad("its header lacks one of 'descr', 'fortran_order' and 'shape'");
    if (*fortran_) {
      bad("it is in Fortran order, and flashjit reads C order",
          "save numpy.ascontiguousarray(x) instead of x");
    }
    return {.dtype = *dtype_, .shape = *shape_};
  }

  [[noreturn]] void bad(std::string_view why, std::string hint = {}) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", name_, why), std::move(hint));
  }

 private:
  // The file's bytes must not control the terminal when they appear in a message.
  static std::string printable(std::string_view text) {
    constexpr std::size_t kLongest = 40;
    std::string result;
    for (const char c : text.substr(0, kLongest)) result += c >= ' ' && c <= '~' ? c : '?';
    return text.size() > kLongest ? result + "…" : result;
  }

  void skip_space() {
    const std::size_t first = text_.find_first_not_of(" \t\n\r");
    text_.remove_prefix(first == std::string_view::npos ? text_.size() : first);
  }
  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) bad(fmt::format("its header should have '{}' before \"{}\"", c, printable(text_)));
  }
  void once(bool seen, const std::string& key) const {
    if (seen) bad(fmt::format("its header has '{}' twice", key));
  }

  std::string quoted() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_.front();
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos)
      bad(fmt::format("its header should have a string at \"{}\"", printable(text_)));
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    if (value.find('\\') != std::string::npos)
      bad("its header has a string with an escape, which no dtype needs");
    return value;
  }

  DType dtype() {
    skip_space();
    if (!text_.empty() && text_.front() == '[')
      bad("it holds records, not numbers", fmt::format("the dtype may be {}", kDtypes));
    const std::string descr = quoted();
    if (descr == "<f2") return DType::fp16;
    if (descr == "<f4") return DType::fp32;
    for (const char* bits : {"V2", "|V2", "<V2", "<u2"}) {
      if (descr == bits) return DType::bf16;
    }
    bad(fmt::format("its dtype is '{}'{}", printable(descr),
                    !descr.empty() && descr.front() == '>' ? " (big-endian)" : ""),
        fmt::format("it may be {}; x.astype(numpy.float32) converts any number", kDtypes));
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(0, word.size()) != word) continue;
      text_.remove_prefix(word.size());
      return value;
    }
    bad(fmt::format("its 'fortran_order' should be True or False, not \"{}\"", printable(text_)));
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> sizes;
    bool comma = true;
    expect('(');
    while (!accept(')')) {
      if (!comma) expect(',');
      skip_space();
      std::int64_t size = 0;
      const auto parsed = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (parsed.ec != std::errc() || size < 0) {
        bad(fmt::format("its shape should have a size at \"{}\"", printable(text_)));
      }
      text_.remove_prefix(static_cast<std::size_t>(parsed.ptr - text_.data()));
      if (sizes.size() == kMostDimensions)
        bad(fmt::format("it has more than {} dimensions", kMostDimensions));
      sizes.push_back(size);
      comma = accept(',');
    }
    // In Python (3) is a number; a tuple of one is (3,).
    if (sizes.size() == 1 && !comma) bad("its shape is a number, not a tuple");
    return sizes;
  }

  std::string_view text_;
  const std::string& name_;
  std::optional<DType> dtype_;
  std::optional<bool> fortran_;
  std::optional<std::vector<std::int64_t>> shape_;
};

// The header's length field: two bytes in version 1, four in versions 2 and 3.
std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    value |= std::size_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

std::size_t count_bytes(const NpyHeader& header, const HeaderParser& parser) {
  std::size_t elements = 1;
  for (const std::int64_t size : header.shape) {
    if (size == 0) return 0;
  }
  for (const std::int64_t size : header.shape) {
    if (static_cast<std::uint64_t>(size) > kMostElements / elements) {
      parser.bad(fmt::format("its shape ({}) has more than 2^40 elements", fmt::join(header.shape, ", ")));
    }
    elements *= static_cast<std::size_t>(size);
  }
  return elements * static_cast<std::size_t>(size_of(header.dtype));
}

}  // namespace

NpyHeader parse_npy_header(std::string_view start, const std::string& name) {
  const HeaderParser complain({}, name);
  if (start.size() < kMagic.size() + 4 || start.substr(0, kMagic.size()) != kMagic) {
    complain.bad("it is no .npy file: it does not start as one", "numpy.save writes them");
  }
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3 || start[7] != 0) {
    complain.bad(fmt::format("its format is version {}.{}, flashjit reads 1.0, 2.0 and 3.0", version,
                             static_cast<unsigned char>(start[7])));
  }
  const std::size_t length_size = version == 1 ? 2 : 4;
  const std::size_t begin = kMagic.size() + 2 + length_size;
  if (start.size() < begin) complain.bad("it ends inside its header");
  const std::size_t length = little_endian(start.substr(begin - length_size, length_size));
  if (length > kLongestNpyHeader - begin) {
    complain.bad(fmt::format("its header claims {} bytes, no sensible one has more than {}", length,
                             kLongestNpyHeader - begin));
  }
  if (length > start.size() - begin) {
    complain.bad(fmt::format("it ends inside its header, which claims {} bytes", length));
  }
  HeaderParser parser(start.substr(begin, length), name);
  NpyHeader header = parser.parse();
  header.offset = begin + length;
  header.bytes = count_bytes(header, parser);
  return header;
}

std::string make_npy_header(DType dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kAlignment = 64;
  const char* descr = dtype == DType::fp32 ? "<f4" : dtype == DType::fp16 ? "<f2" : "<u2";
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  const std::size_t before = kMagic.size() + 4;
  const std::size_t unpadded = before + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header += {'\1', '\0', static_cast<char>(text.size() & 255), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace flashjit::cli
