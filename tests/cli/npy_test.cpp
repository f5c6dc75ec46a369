// .npy files: what NumPy writes is read, what lies or is cut short is refused in words that name the file.
#include "cli/common/npy.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "cli/common/npy_header.hpp"
#include "flashjit/error.hpp"
#include "tests/support/contains.hpp"

namespace flashjit::cli {
namespace {

namespace fs = std::filesystem;
using test::contains;

// A file of the given version around a dictionary, padded as NumPy does, with `data_bytes` bytes of data.
std::string npy(const std::string& dictionary, std::size_t data_bytes, int version = 1) {
  const std::size_t length_size = version == 1 ? 2 : 4;
  std::string text = dictionary;
  while ((6 + 2 + length_size + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t i = 0; i < length_size; ++i) file += static_cast<char>(text.size() >> (8 * i));
  return file + text + std::string(data_bytes, 'd');
}

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

NpyArray parse(const std::string& file) {
  return parse_npy(std::as_bytes(std::span(file)), "q.npy");
}

std::string refusal(const std::string& file) {
  try {
    (void)parse(file);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(error.message().starts_with("q.npy"));
    for (const char c : error.message()) CHECK((c >= ' ' || static_cast<unsigned char>(c) >= 0x80));
    return error.message();
  }
  return "nothing was refused";
}

TEST_CASE("what NumPy writes is read") {
  const NpyArray array = parse(npy(header("'<f2'", "(2, 3, 4, 8)"), 384));
  CHECK(array.dtype == DType::fp16);
  CHECK(array.shape == std::vector<std::int64_t>{2, 3, 4, 8});
  CHECK(array.bytes.size() == 384);
  CHECK(array.bytes[0] == std::byte{'d'});
  CHECK(parse(npy(header("'<f4'", "(5,)"), 20)).dtype == DType::fp32);
  for (const char* bits : {"'<V2'", "'|V2'", "'V2'", "'<u2'"})
    CHECK(parse(npy(header(bits, "(1, 1)"), 2)).dtype == DType::bf16);
  for (int version = 1; version <= 3; ++version)
    CHECK(parse(npy(header("'<f4'", "(1, 2)"), 8, version)).bytes.size() == 8);
  CHECK(parse(npy(header("'<f4'", "()"), 4)).shape.empty());
  CHECK(parse(npy(header("'<f4'", "(4, 0, 9)"), 0)).bytes.empty());
}

TEST_CASE("any order, quotes and spaces that Python allows") {
  CHECK(parse(npy("{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}", 8)).shape.size() == 2);
  CHECK(parse(npy(" {  'fortran_order' : False , 'shape' : ( 1 , 2 , ) , 'descr' : '<f4' } ", 8))
            .shape.size() == 2);
}

TEST_CASE("other arrays are refused with the reason") {
  CHECK(contains(refusal(npy(header("'<f4'", "(2, 3)", "True"), 24)), "Fortran"));
  CHECK(contains(refusal(npy(header("'>f4'", "(2,)"), 8)), "big-endian"));
  for (const char* other : {"'<f8'", "'<i4'", "'|b1'", "'<c8'", "'|O'", "'<U3'", "''", "'\x1b[31m'"}) {
    CHECK_MESSAGE(contains(refusal(npy(header(other, "(2,)"), 8)), "its dtype is"), other);
  }
  CHECK(contains(refusal(npy(header("[('a', '<f4')]", "(2,)"), 8)), "records"));
  CHECK(contains(refusal(npy(header("'<f4'", "(1, 1, 1, 1, 1)"), 4)), "more than 4 dimensions"));
}

TEST_CASE("files that lie about their size are refused before memory is taken") {
  CHECK(contains(refusal(npy(header("'<f4'", "(2, 3)"), 23)), "promises 24 bytes of data, it has 23"));
  CHECK(contains(refusal(npy(header("'<f4'", "(2, 3)"), 25)), "it has 25"));
  CHECK(contains(refusal(npy(header("'<f4'", "(1000000, 1000)"), 0)), "promises 4000000000"));
  CHECK(contains(refusal(npy(header("'<f4'", "(4611686018427387904, 4)"), 0)), "2^40"));
  CHECK(contains(refusal(npy(header("'<f4'", "(1099511627777,)"), 0)), "2^40"));
  CHECK(contains(refusal(npy(header("'<f4'", "(99999999999999999999,)"), 0)), "size"));
  CHECK(contains(refusal(npy(header("'<f4'", "(-1, 2)"), 0)), "size"));
  CHECK(contains(refusal(npy(std::string(65526, ' '), 0, 2)),
                 "its header claims 65588 bytes, no sensible one has more than 65524"));
}

TEST_CASE("headers that are no dictionary of three are refused") {
  for (const char* bad :
       {"", "{", "{}", "[]", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x1,)}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr' '<f4', 'fortran_order': False, 'shape': (1,)}", "__import__('os').system('true')"}) {
    CHECK_MESSAGE(refusal(npy(bad, 4)) != "nothing was refused", bad);
  }
}

TEST_CASE("every truncation is refused") {
  for (const int version : {1, 2}) {
    const std::string whole = npy(header("'<f4'", "(2, 3)"), 24, version);
    CHECK(parse(whole).bytes.size() == 24);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CHECK_MESSAGE(refusal(whole.substr(0, length)) != "nothing was refused", length);
    }
  }
  CHECK(contains(refusal("PK\3\4 this is a zip file"), "no .npy file"));
  CHECK(contains(refusal(npy(header("'<f4'", "(1,)"), 4, 4)), "version 4.0"));
  std::string huge = npy(header("'<f4'", "(1,)"), 4, 2);
  huge[11] = '\x7f';  // the length's top byte
  CHECK(contains(refusal(huge), "its header claims"));
}

// A folder that goes away.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "flashjit-npy-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

TEST_CASE("what is written is read back, and starts at a multiple of 64") {
  const Scratch scratch;
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32}) {
    for (const auto& shape : {std::vector<std::int64_t>{2, 3, 4, 5}, {7}, {}, {3, 0}}) {
      NpyArray array{.dtype = dtype, .shape = shape};
      std::size_t elements = 1;
      for (const std::int64_t size : shape) elements *= static_cast<std::size_t>(size);
      for (std::size_t i = 0; i < elements * static_cast<std::size_t>(size_of(dtype)); ++i) {
        array.bytes.push_back(static_cast<std::byte>(i * 37));
      }
      write_npy(scratch / "a.npy", array);
      const NpyArray read = read_npy(scratch / "a.npy");
      CHECK(read.dtype == dtype);
      CHECK(read.shape == shape);
      CHECK(read.bytes == array.bytes);
      CHECK(make_npy_header(dtype, shape).size() % 64 == 0);
    }
  }
}

TEST_CASE("an array longer than the longest header is read whole") {
  const Scratch scratch;
  NpyArray array{.dtype = DType::fp32, .shape = {100000}, .bytes = std::vector<std::byte>(400000)};
  for (std::size_t i = 0; i < array.bytes.size(); ++i)
    array.bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  write_npy(scratch / "long.npy", array);
  CHECK(read_npy(scratch / "long.npy").bytes == array.bytes);
}

template <class Call>
Error thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

TEST_CASE("files that can not be read or written") {
  const Scratch scratch;
  const NpyArray small{.dtype = DType::fp32, .shape = {1}, .bytes = std::vector<std::byte>(4)};
  CHECK(thrown_by([&] { (void)read_npy(scratch / "none.npy"); }).code() == ErrorCode::not_found);
  CHECK(thrown_by([&] { (void)read_npy(scratch / ""); }).code() == ErrorCode::invalid_argument);
  CHECK(thrown_by([&] { (void)read_npy("/dev/zero"); }).code() == ErrorCode::invalid_argument);
  CHECK(thrown_by([&] { write_npy(scratch / "no" / "a.npy", small); }).code() == ErrorCode::not_found);
  const Error full = thrown_by([&] { write_npy("/dev/full", small); });
  CHECK(full.code() == ErrorCode::io);
  CHECK(contains(full.message(), "No space left"));
  std::ofstream(scratch / "cut.npy", std::ios::binary) << npy(header("'<f4'", "(2, 3)"), 10);
  const Error cut = thrown_by([&] { (void)read_npy(scratch / "cut.npy"); });
  CHECK(cut.code() == ErrorCode::invalid_argument);
  CHECK(contains(cut.message(), (scratch / "cut.npy").string()));
}

}  // namespace
}  // namespace flashjit::cli
