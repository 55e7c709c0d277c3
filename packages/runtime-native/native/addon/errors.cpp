#include "errors.h"

namespace cflow {

Napi::Error to_js_error(Napi::Env env, const char* code, const std::string& problem, const std::string& remedy) {
  Napi::Error error = Napi::Error::New(env, problem);
  error.Set("code", Napi::String::New(env, code));
  if (!remedy.empty()) error.Set("remedy", Napi::String::New(env, remedy));
  return error;
}

Napi::Error to_js_error(Napi::Env env, const Error& error) {
  return to_js_error(env, error.code(), error.what(), error.remedy());
}

}  // namespace cflow
