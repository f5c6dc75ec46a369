// Opens a cache directory if it can be trusted: whoever can write to it can run code on our GPU.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cache/files.hpp"

namespace flashjit::cache {

enum class Trust {
  verify,    // ours (the effective user's), no symlink, not writable by group or others: for a default place
  as_given,  // named by the user, who may share it: only refused if everybody may write to it
};

struct Directory {
  File folder;    // empty if the directory could not be opened or made
  int error = 0;  // errno that says why not
};

// Opens the directory and, if `create`, makes it and its parents (with mode 0700, or 0755 if it was named).
// Throws Error{io} if it is not a directory or must not be trusted. If it cannot be reached or written to,
// returns errno.
Directory open_directory(const std::filesystem::path& path, Trust trust, bool create);

// The name of an entry's file, and whether a name is that of an entry.
std::string entry_file_name(const std::string& digest);
bool is_entry_name(std::string_view name);
std::string digest_of(const std::string& entry_name);
bool is_wisdom_name(
    std::string_view name);  // "wisdom….jsonl": other rooms write these; clear, pack and unpack see them

struct DirectoryItem {
  std::string name;
  Identity identity;
};
// All regular files of the folder, unordered. Throws Error{io} if it cannot be read.
std::vector<DirectoryItem> list_files(int folder);

}  // namespace flashjit::cache
