#include "emulator/report.hpp"

#include <fmt/format.h>

namespace flashjit::emulator {
namespace {

constexpr std::size_t kEnough = 16;

constexpr const char* kNames[] = {
    "out of bounds", "misaligned",  "freed memory", "never written", "race",       "barrier", "deadlock",
    "async result",  "proxy fence", "wgmma fence",  "descriptor",    "divergence", "illegal"};

}  // namespace

const char* to_string(FindingKind kind) {
  return kNames[static_cast<int>(kind)];
}

std::string Finding::text() const {
  std::string out =
      fmt::format("{}: {}\n  at CTA ({}, {}, {}), warp {}, lanes 0x{:08x}, PTX line {}: {}", to_string(kind),
                  message, cta[0], cta[1], cta[2], warp, lanes, ptx_line, ptx_text);
  for (std::size_t i = 0; i < source_lines.size(); ++i) {
    const bool known = i < origins.size() && !origins[i].empty();
    out += fmt::format("\n  {} source line {}{}", i == 0 ? "from" : "inlined at", source_lines[i],
                       known ? fmt::format(" ({})", origins[i]) : "");
  }
  if (count > 1) out += fmt::format("\n  and {} more like it", count - 1);
  return out;
}

void Report::locate(Finding& finding, u32 ins) const {
  const Statement* statement = program_.statement(ins);
  if (statement == nullptr) return;
  finding.ptx_line = statement->line;
  finding.ptx_text = program_.module.line_text(statement->line).substr(0, 120);
  for (int at = statement->source; at >= 0 && finding.source_lines.size() < 8;
       at = program_.module.lines[at].caller) {
    const int line = program_.module.lines[at].line;
    finding.source_lines.push_back(line);
    const bool known =
        line >= 1 && static_cast<std::size_t>(line) <= origins_.size() && !origins_[line - 1].file.empty();
    finding.origins.push_back(
        known ? fmt::format("templates/{}:{}", origins_[line - 1].file, origins_[line - 1].line)
              : std::string());
  }
}

void Report::add(FindingKind kind, const u32 cta[3], int warp, u32 lanes, u32 ins, std::string message) {
  std::lock_guard lock(mutex_);
  const Statement* statement = program_.statement(ins);
  auto [found, fresh] =
      seen_.try_emplace({kind, statement == nullptr ? 0 : statement->line}, findings_.size());
  if (!fresh) {
    ++findings_[found->second].count;
    return;
  }
  Finding finding;
  finding.kind = kind;
  finding.message = std::move(message);
  finding.cta[0] = cta[0];
  finding.cta[1] = cta[1];
  finding.cta[2] = cta[2];
  finding.warp = warp;
  finding.lanes = lanes;
  finding.seed = seed_;
  locate(finding, ins);
  findings_.push_back(std::move(finding));
}

std::string Report::place(u32 ins) const {
  Finding finding;
  locate(finding, ins);
  std::string out = fmt::format("PTX line {} ({})", finding.ptx_line, finding.ptx_text);
  for (std::size_t i = 0; i < finding.source_lines.size(); ++i) {
    out += finding.origins[i].empty() ? fmt::format(", source line {}", finding.source_lines[i])
                                      : fmt::format(", {}", finding.origins[i]);
  }
  return out;
}

std::vector<Finding> Report::findings() const {
  std::lock_guard lock(mutex_);
  return findings_;
}

bool Report::empty() const {
  std::lock_guard lock(mutex_);
  return findings_.empty();
}

bool Report::full() const {
  std::lock_guard lock(mutex_);
  return findings_.size() >= kEnough;
}

}  // namespace flashjit::emulator
