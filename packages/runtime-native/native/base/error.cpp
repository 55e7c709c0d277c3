#include "error.h"

#include <new>
#include <system_error>

namespace cflow {

namespace {

/// Made when the library is loaded: at the time of need it could not be.
const Error out_of_memory("MEMORY", "the system refused memory",
                          "close other programs, or use a smaller model, batch or context");

}  // namespace

Error current_error() noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return error;
    } catch (const std::bad_alloc&) {
      return out_of_memory;
    } catch (const std::length_error&) {
      return out_of_memory;
    } catch (const std::system_error& error) {
      return Error("LIMIT_EXCEEDED", std::string("cannot start a thread: ") + error.what(), "use fewer threads");
    } catch (const std::exception& error) {
      return Error("INTERNAL", std::string("native code threw: ") + error.what());
    }
  } catch (...) {
    return out_of_memory;
  }
}

}  // namespace cflow
