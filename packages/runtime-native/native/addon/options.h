// Options that JavaScript passes, read and checked.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "errors.h"

namespace cflow {

/// An object. @throws Error USAGE, by its name
inline Napi::Object object(const Napi::Value& value, const char* name) {
  if (!value.IsObject()) throw Error("USAGE", std::string(name) + " is not an object");
  return value.As<Napi::Object>();
}

/// `options[field]`, true or false. @throws Error USAGE
inline bool flag(const Napi::Object& options, const char* field) {
  const Napi::Value value = options.Get(field);
  if (!value.IsBoolean()) throw Error("USAGE", std::string(field) + " is not a boolean");
  return value.As<Napi::Boolean>();
}

/// `options[field]`, a string. @throws Error USAGE
inline std::string text(const Napi::Object& options, const char* field) {
  const Napi::Value value = options.Get(field);
  if (!value.IsString()) throw Error("USAGE", std::string(field) + " is not a string");
  return value.As<Napi::String>();
}

/// A whole number from `least` to `most`. @throws Error USAGE, by its name
template <class Number = int>
Number whole(const Napi::Value& value, const char* name, int64_t least, int64_t most) {
  const double x = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : std::nan("");
  if (x >= static_cast<double>(least) && x <= static_cast<double>(most) && x == std::floor(x)) {
    return static_cast<Number>(x);
  }
  throw Error("USAGE", std::string(name) + " is not a whole number from " + std::to_string(least) + " to " +
                           std::to_string(most));
}

/// `options[field]`, the same.
template <class Number = int>
Number whole(const Napi::Object& options, const char* field, int64_t least, int64_t most) {
  return whole<Number>(options.Get(field), field, least, most);
}

/// `options[field]`, as its place among the words that are allowed. @throws Error USAGE
template <class Enum>
Enum choice(const Napi::Object& options, const char* field, std::initializer_list<const char*> words) {
  const std::string value = options.Get(field).ToString();
  uint8_t place = 0;
  for (const char* word : words) {
    if (value == word) return Enum{place};
    place++;
  }
  throw Error("USAGE", std::string(field) + " cannot be \"" + value + "\"");
}

}  // namespace cflow
