// What native code throws. Codes are those of packages/format/src/errors.ts; the addon turns them into CflowError.
#pragma once

#include <stdexcept>
#include <string>

namespace cflow {

class Error : public std::runtime_error {
 public:
  /// @param code a key of ERRORS, e.g. "LIMIT_EXCEEDED"
  Error(const char* code, const std::string& problem, std::string remedy = "")
      : std::runtime_error(problem), code_(code), remedy_(std::move(remedy)) {}

  const char* code() const { return code_; }
  const std::string& remedy() const { return remedy_; }

 private:
  const char* code_;
  std::string remedy_;
};

}  // namespace cflow
