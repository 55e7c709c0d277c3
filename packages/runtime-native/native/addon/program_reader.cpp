#include "program_reader.h"

#include <cmath>
#include <map>

namespace cflow {
namespace {

constexpr double kMaxCount = 4294967295.0;
constexpr double kMaxOffset = 9007199254740991.0;

[[noreturn]] void refuse(const std::string& where, const std::string& problem) {
  throw Error("INTERNAL", "program." + where + " " + problem);
}

/// An object of the program, and what errors call it.
class Node {
 public:
  Node(Napi::Object object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  std::string where(const char* field) const { return where_.empty() ? field : where_ + "." + field; }

  Napi::Value value(const char* field) const { return object_.Get(field); }

  double number(const char* field) const {
    const Napi::Value found = value(field);
    if (!found.IsNumber()) refuse(where(field), "is not a number");
    return found.As<Napi::Number>().DoubleValue();
  }

  float real(const char* field) const {
    const double x = number(field);
    if (!std::isfinite(x)) refuse(where(field), "is not finite");
    return static_cast<float>(x);
  }

  uint32_t count(const char* field, uint32_t least = 0) const { return to_count(number(field), where(field), least); }

  /// An index below `limit`.
  uint32_t index(const char* field, size_t limit) const {
    const uint32_t i = count(field);
    if (i >= limit) refuse(where(field), std::to_string(i) + " is not below " + std::to_string(limit));
    return i;
  }

  /// A byte offset; -1 = none, if that is allowed.
  Offset offset(const char* field, bool optional) const {
    const double x = number(field);
    if (optional && x == -1) return -1;
    return static_cast<Offset>(to_offset(x, where(field)));
  }

  bool flag(const char* field) const {
    const Napi::Value found = value(field);
    if (!found.IsBoolean()) refuse(where(field), "is not a boolean");
    return found.As<Napi::Boolean>().Value();
  }

  std::string text(const char* field) const {
    const Napi::Value found = value(field);
    if (!found.IsString()) refuse(where(field), "is not a string");
    return found.As<Napi::String>().Utf8Value();
  }

  Node child(const char* field) const { return to_node(value(field), where(field)); }

  std::vector<Node> children(const char* field) const {
    const Napi::Array list = array(field);
    std::vector<Node> nodes;
    for (uint32_t i = 0; i < list.Length(); i++) {
      nodes.push_back(to_node(list.Get(i), where(field) + "[" + std::to_string(i) + "]"));
    }
    return nodes;
  }

  std::vector<double> numbers(const char* field) const {
    const Napi::Array list = array(field);
    std::vector<double> values;
    for (uint32_t i = 0; i < list.Length(); i++) {
      const Napi::HandleScope scope(list.Env());
      const Napi::Value entry = list.Get(i);
      if (!entry.IsNumber()) refuse(where(field), "holds what is not a number");
      values.push_back(entry.As<Napi::Number>().DoubleValue());
    }
    return values;
  }

  std::vector<uint32_t> counts(const char* field, uint32_t least = 0) const {
    std::vector<uint32_t> result;
    for (const double x : numbers(field)) result.push_back(to_count(x, where(field), least));
    return result;
  }

  /// Indices below `limit`.
  std::vector<uint32_t> indices(const char* field, size_t limit) const {
    auto result = counts(field);
    for (const uint32_t i : result) {
      if (i >= limit) refuse(where(field), std::to_string(i) + " is not below " + std::to_string(limit));
    }
    return result;
  }

  std::vector<uint64_t> offsets(const char* field) const {
    const auto list = doubles(value(field), where(field));
    std::vector<uint64_t> result;
    for (const double x : list) result.push_back(to_offset(x, where(field)));
    return result;
  }

  static std::vector<double> doubles(const Napi::Value& value, const std::string& where) {
    const bool typed = value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_float64_array;
    if (!typed) refuse(where, "is not a Float64Array");
    const auto array = value.As<Napi::Float64Array>();
    return std::vector<double>(array.Data(), array.Data() + array.ElementLength());
  }

  Napi::Array array(const char* field) const {
    const Napi::Value found = value(field);
    if (!found.IsArray()) refuse(where(field), "is not an array");
    return found.As<Napi::Array>();
  }

 private:
  static Node to_node(const Napi::Value& value, std::string where) {
    if (!value.IsObject()) refuse(where, "is not an object");
    return Node(value.As<Napi::Object>(), std::move(where));
  }

  static uint32_t to_count(double x, const std::string& where, uint32_t least) {
    if (!(x >= least && x <= kMaxCount) || x != std::floor(x)) {
      refuse(where, std::to_string(x) + " is not a whole number of at least " + std::to_string(least));
    }
    return static_cast<uint32_t>(x);
  }

  static uint64_t to_offset(double x, const std::string& where) {
    if (!(x >= 0 && x <= kMaxOffset) || x != std::floor(x)) refuse(where, std::to_string(x) + " is no byte offset");
    return static_cast<uint64_t>(x);
  }

  Napi::Object object_;
  std::string where_;
};

TiledMatrix read_matrix(const Node& parent, const char* field) {
  const Node node = parent.child(field);
  TiledMatrix matrix{node.count("rows", 1), node.count("cols", 1), node.offsets("stripes")};
  const size_t expected = (static_cast<size_t>(matrix.rows) + kTileRows - 1) / kTileRows;
  if (matrix.stripes.size() != expected) {
    refuse(node.where("stripes"), "has " + std::to_string(matrix.stripes.size()) + " entries for " +
                                      std::to_string(matrix.rows) + " rows");
  }
  return matrix;
}

/// Reads the steps of a program whose buffers, caches and tables are known.
class StepReader {
 public:
  explicit StepReader(const Program& program) : program_(program) {}

  Step read(const Node& node) const {
    const auto& readers = table();
    const auto found = readers.find(node.text("op"));
    if (found == readers.end()) refuse(node.where("op"), "is no step: " + node.text("op"));
    return (this->*found->second)(node);
  }

 private:
  using Read = Step (StepReader::*)(const Node&) const;

  static std::map<std::string, Read> table() {
    return {{"embed", &StepReader::embed},
            {"rmsNorm", &StepReader::rms_norm},
            {"quantize", &StepReader::quantize},
            {"matvec", &StepReader::matvec},
            {"gatedMatvec", &StepReader::gated_matvec},
            {"plainMatvec", &StepReader::plain_matvec},
            {"rope", &StepReader::rope},
            {"append", &StepReader::append},
            {"attend", &StepReader::attend},
            {"glu", &StepReader::glu},
            {"route", &StepReader::route},
            {"expertsUp", &StepReader::experts_up},
            {"expertsDown", &StepReader::experts_down},
            {"sum", &StepReader::sum},
            {"clamp", &StepReader::clamp},
            {"softcap", &StepReader::softcap},
            {"copy", &StepReader::copy},
            {"callExperts", &StepReader::call_experts},
            {"callStream", &StepReader::of_stream<step::CallStream>},
            {"syncExperts", &StepReader::of_bank<step::SyncExperts>},
            {"syncStream", &StepReader::of_stream<step::SyncStream>},
            {"releaseExperts", &StepReader::of_bank<step::ReleaseExperts>},
            {"releaseStream", &StepReader::of_stream<step::ReleaseStream>}};
  }

  BufferId buffer(const Node& node, const char* field) const { return node.index(field, program_.buffers.size()); }
  uint32_t cache(const Node& node) const { return node.index("cache", program_.caches.size()); }
  uint32_t bank(const Node& node) const { return node.index("bank", program_.banks.size()); }
  uint32_t stream(const Node& node) const { return node.index("stream", program_.streams.size()); }
  /// -1 = in memory.
  static uint32_t fetched(const Node& node, const char* field, size_t limit) {
    return node.number(field) == -1 ? kInMemory : node.index(field, limit);
  }
  static Activation activation(const Node& node) {
    return static_cast<Activation>(node.index("activation", kActivationCount));
  }

  Step embed(const Node& n) const { return step::Embed{read_matrix(n, "matrix"), n.real("scale"), buffer(n, "out")}; }

  Step rms_norm(const Node& n) const {
    return step::RmsNorm{buffer(n, "input"),     n.offset("weight", true), n.count("weightLength", 1),
                         n.count("groupSize", 1), n.real("eps"),            buffer(n, "out")};
  }

  Step quantize(const Node& n) const {
    return step::Quantize{buffer(n, "input"), n.count("parts", 1), n.count("partLength", 1)};
  }

  Step matvec(const Node& n) const {
    step::Matvec result{buffer(n, "input"), {}, fetched(n, "stream", program_.streams.size())};
    for (const Node& out : n.children("outs")) {
      result.outs.push_back({buffer(out, "out"), read_matrix(out, "matrix"), out.offset("bias", true)});
    }
    if (result.outs.empty()) refuse(n.where("outs"), "is empty");
    return result;
  }

  Step gated_matvec(const Node& n) const {
    return step::GatedMatvec{buffer(n, "input"),         read_matrix(n, "gate"),   read_matrix(n, "up"),
                             n.offset("gateBias", true), n.offset("upBias", true), activation(n),
                             buffer(n, "out"),           fetched(n, "stream", program_.streams.size())};
  }

  Step plain_matvec(const Node& n) const {
    return step::PlainMatvec{buffer(n, "input"), n.offset("weight", false), n.count("rows", 1), n.count("cols", 1),
                             buffer(n, "out")};
  }

  Step rope(const Node& n) const {
    return step::Rope{buffer(n, "buffer"), n.count("headDim", 1), n.index("table", program_.ropes.size())};
  }

  Step append(const Node& n) const { return step::Append{cache(n), buffer(n, "k"), buffer(n, "v")}; }

  Step attend(const Node& n) const {
    return step::Attend{cache(n),        buffer(n, "q"),    buffer(n, "out"), n.count("heads", 1),
                        n.real("scale"), n.real("softcap"), n.count("window")};
  }

  Step glu(const Node& n) const {
    return step::Glu{buffer(n, "gate"), buffer(n, "up"), activation(n), buffer(n, "out"), n.count("upFrom")};
  }

  Step route(const Node& n) const {
    return step::Route{buffer(n, "logits"), n.count("topK", 1), n.flag("normalize"), buffer(n, "out"), n.offset("scale", true)};
  }

  Step experts_up(const Node& n) const {
    return step::ExpertsUp{buffer(n, "input"), buffer(n, "routing"), n.count("topK", 1),
                           n.count("dim", 1),  activation(n),        buffer(n, "hidden"),
                           experts(n),         read_matrix(n, "gate"), read_matrix(n, "up"),
                           fetched(n, "bank", program_.banks.size())};
  }

  Step experts_down(const Node& n) const {
    return step::ExpertsDown{buffer(n, "hidden"), buffer(n, "routing"), n.count("topK", 1), n.count("dim", 1),
                             buffer(n, "out"),    experts(n),           read_matrix(n, "down"),
                             fetched(n, "bank", program_.banks.size())};
  }

  Step sum(const Node& n) const {
    step::Sum result{n.indices("terms", program_.buffers.size()), {}, buffer(n, "out"), n.offset("scale", true)};
    for (const double x : n.numbers("coefficients")) result.coefficients.push_back(static_cast<float>(x));
    if (result.terms.empty() || result.terms.size() != result.coefficients.size()) {
      refuse(n.where("coefficients"), "and terms are not as many, or none");
    }
    return result;
  }

  Step clamp(const Node& n) const { return step::Clamp{buffer(n, "buffer"), n.real("limit")}; }

  Step softcap(const Node& n) const { return step::Softcap{buffer(n, "buffer"), n.real("cap")}; }

  Step copy(const Node& n) const { return step::Copy{buffer(n, "input"), buffer(n, "out"), n.count("at")}; }

  Step call_experts(const Node& n) const {
    return step::CallExperts{bank(n), buffer(n, "routing"), n.count("topK", 1), n.flag("ahead")};
  }
  template <class OfBank>
  Step of_bank(const Node& n) const {
    return OfBank{bank(n)};
  }
  template <class OfStream>
  Step of_stream(const Node& n) const {
    return OfStream{stream(n)};
  }

  static std::vector<uint64_t> experts(const Node& n) {
    auto offsets = n.offsets("experts");
    if (offsets.empty() || offsets.size() < n.count("topK", 1)) refuse(n.where("experts"), "are fewer than topK");
    return offsets;
  }

  const Program& program_;
};

void read_ropes(const Node& root, Program& program) {
  const Napi::Array list = root.array("ropes");
  for (uint32_t i = 0; i < list.Length(); i++) {
    program.ropes.push_back(Node::doubles(list.Get(i), "ropes[" + std::to_string(i) + "]"));
  }
  for (const Node& growth : root.children("ropeGrowths")) {
    program.rope_growths.push_back({growth.real("factor"), growth.count("length")});
  }
}

/// Pairs of offset and length.
std::vector<FetchRegion> to_regions(const std::vector<uint64_t>& pairs, const std::string& where) {
  if (pairs.size() % 2) refuse(where, "is not made of pairs");
  std::vector<FetchRegion> regions;
  for (size_t i = 0; i < pairs.size(); i += 2) regions.push_back({pairs[i], pairs[i + 1]});
  return regions;
}

void read_tiers(const Node& root, Program& program) {
  const Node tiers = root.child("tiers");
  program.resident = to_regions(tiers.offsets("resident"), tiers.where("resident"));
  program.streams = to_regions(tiers.offsets("streams"), tiers.where("streams"));
  for (const Node& bank : tiers.children("banks")) {
    program.banks.push_back(to_regions(bank.offsets("regions"), bank.where("regions")));
  }
}

/// Every step stands in exactly one phase.
void read_phases(const Node& root, Program& program) {
  std::vector<bool> seen(program.steps.size());
  for (const Node& node : root.children("phases")) {
    Phase phase{node.indices("parallel", seen.size()), node.indices("serial", seen.size()),
                node.indices("transfers", seen.size())};
    for (const auto* list : {&phase.parallel, &phase.serial, &phase.transfers}) {
      for (const uint32_t i : *list) {
        if (seen[i]) refuse(node.where(), "repeats step " + std::to_string(i));
        seen[i] = true;
      }
    }
    program.phases.push_back(std::move(phase));
  }
  for (size_t i = 0; i < seen.size(); i++) {
    if (!seen[i]) refuse("phases", "lack step " + std::to_string(i));
  }
}

}  // namespace

Program read_program(Napi::Object object) {
  const Node root(object, "");
  Program program{};
  program.dtype = static_cast<Dtype>(root.index("dtype", kDtypeCount));
  program.buffers = root.counts("buffers", 1);
  for (const Node& cache : root.children("caches")) {
    program.caches.push_back({cache.count("kvHeads", 1), cache.count("headDim", 1), cache.count("window")});
  }
  read_ropes(root, program);
  read_tiers(root, program);
  const StepReader reader(program);
  const Napi::Array steps = root.array("steps");
  for (uint32_t i = 0; i < steps.Length(); i++) {
    const Napi::HandleScope scope(object.Env());
    const Napi::Value entry = steps.Get(i);
    const std::string where = "steps[" + std::to_string(i) + "]";
    if (!entry.IsObject()) refuse(where, "is not an object");
    program.steps.push_back(reader.read(Node(entry.As<Napi::Object>(), where)));
  }
  read_phases(root, program);
  program.head_phase = root.index("headPhase", program.phases.size());
  program.output = root.index("output", program.buffers.size());
  program.vocab_size = root.count("vocabSize", 1);
  program.context_length = root.count("contextLength", 1);
  return program;
}

}  // namespace cflow
