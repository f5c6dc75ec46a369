// What `flashjit doctor` finds, and how a check finds it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashjit/error.hpp"

namespace flashjit::cli {

enum class State {
  ok,
  note,     // works, but with a reservation
  absent,   // something that flashjit can do without
  problem,  // something that flashjit needs
};

struct Finding {
  std::string what;
  State state;
  std::string words;
  std::string advice;
};

// Runs a check; an Error becomes a finding of the given state. Only what is not there can be absent.
inline void check(std::vector<Finding>& findings, const std::string& what, State when_it_fails,
                  const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const bool broken = when_it_fails == State::absent && error.code() != ErrorCode::not_found;
    findings.push_back({what, broken ? State::problem : when_it_fails, error.message(), error.hint()});
  } catch (const std::exception& error) {
    findings.push_back({what, when_it_fails, error.what(), ""});
  }
}

// The cache's directories, and what is in them.
void check_cache(std::vector<Finding>& findings);

}  // namespace flashjit::cli
