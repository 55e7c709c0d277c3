// Native errors as JavaScript's.
#pragma once

#include <napi.h>

#include <string>

#include "../base/error.h"

namespace cflow {

/// An Error with `code` and `remedy`, for the TypeScript side to turn into a CflowError.
Napi::Error to_js_error(Napi::Env env, const char* code, const std::string& problem, const std::string& remedy = "");
Napi::Error to_js_error(Napi::Env env, const Error& error);

/// Runs `body` on the JavaScript thread; native exceptions become JavaScript ones.
template <typename Body>
auto guarded(Napi::Env env, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw to_js_error(env, current_error());
  }
}

}  // namespace cflow
