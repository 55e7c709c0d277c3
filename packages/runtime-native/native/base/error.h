// What native code throws. Codes are those of packages/format/src/errors.ts; the addon turns them into CflowError.
#pragma once

#include <stdexcept>
#include <string>

namespace cflow {

/// Copies share their texts: copying never allocates, so an error can be kept and passed on where memory has run out.
class Error : public std::runtime_error {
 public:
  /// @param code a key of ERRORS, e.g. "LIMIT_EXCEEDED"; a string literal
  Error(const char* code, const std::string& problem, const std::string& remedy = "")
      : std::runtime_error(problem), code_(code), remedy_(remedy) {}

  const char* code() const { return code_; }
  const char* remedy() const { return remedy_.what(); }

 private:
  const char* code_;
  std::runtime_error remedy_;
};

/// The exception that is being handled, as an Error: std::bad_alloc becomes MEMORY, std::system_error (a refused thread)
/// LIMIT_EXCEEDED, anything else INTERNAL. Only in a catch block. Where there is no memory for the text, MEMORY.
Error current_error() noexcept;

/// Runs `body`; whatever it throws is thrown on as an Error.
template <typename Body>
decltype(auto) with_typed_errors(Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw current_error();
  }
}

}  // namespace cflow
