// A warm cache as one file that can be moved between machines: `flashjit cache pack` and `unpack`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "cache/store.hpp"

namespace flashjit::cache {

struct Packed {
  std::uint64_t entries = 0;
  std::uint64_t wisdom = 0;   // how many files
  std::uint64_t skipped = 0;  // damaged, misfiled or unreadable entries, which were left out
  std::uint64_t bytes = 0;    // the size of the pack
};
// Writes all good entries and all wisdom of options.directory to `pack`, completely or not at all. The same
// entries give the same bytes. Throws Error{io}; {not_found} if there is no directory.
Packed pack(const StoreOptions& options, const std::filesystem::path& pack_file);

struct Unpacked {
  std::uint64_t entries = 0;
  std::uint64_t kept = 0;     // how many were there already
  std::uint64_t wisdom = 0;   // how many files were merged
  std::uint64_t removed = 0;  // removed again, oldest first, because the directory was over its limit
};
// Merges a pack's wisdom file (its name and lines) into the directory's own. Returns false if it is no wisdom
// that this version reads, which is then left out.
using MergeWisdom = std::function<bool(const std::filesystem::path& file, std::string_view lines)>;
// Verifies all of `pack_file` before it writes anything: names, lengths, checksums, and that each entry is
// filed under its digest. A kernel that is there already stays as it is; a list ("record") gains what the
// pack's list has. Throws Error{invalid_argument} for a bad pack, naming the record; Error{io} if the
// directory must not be trusted or cannot be written to. A pack is code, like the cache: unpack only what you
// trust.
Unpacked unpack(const std::filesystem::path& pack_file, const StoreOptions& options,
                const MergeWisdom& merge_wisdom);

}  // namespace flashjit::cache
