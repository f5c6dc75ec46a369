// A warm cache as one file, to move between machines: `flashjit cache pack` and `unpack`.
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
  std::uint64_t wisdom = 0;   // files
  std::uint64_t skipped = 0;  // damaged, misfiled or unreadable entries, left out
  std::uint64_t bytes = 0;    // of the pack
};
// Writes all good entries and all wisdom of options.directory to `pack`, whole or not at all. The same
// entries make the same bytes. Throws Error{io}; {not_found} when there is no directory.
Packed pack(const StoreOptions& options, const std::filesystem::path& pack_file);

struct Unpacked {
  std::uint64_t entries = 0;
  std::uint64_t kept = 0;  // were there already
  std::uint64_t wisdom = 0;
  std::uint64_t removed = 0;  // again, the oldest: over the directory's limit
};
// Merges a pack's wisdom file (its name and lines) into the directory's own.
using MergeWisdom = std::function<void(const std::filesystem::path& file, std::string_view lines)>;
// Verifies all of `pack_file` before it writes anything: names, lengths, checksums, and that each entry is
// filed under its digest. Throws Error{invalid_argument} for a bad pack, naming the record; Error{io} for a
// directory that is not to be trusted or can not be written to. A pack is code, like the cache: unpack only
// what you trust. A kernel that is there already stays as it is; a list ("record") grows by what the pack's
// has.
Unpacked unpack(const std::filesystem::path& pack_file, const StoreOptions& options,
                const MergeWisdom& merge_wisdom);

}  // namespace flashjit::cache
