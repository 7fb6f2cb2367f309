#include "checkpoint/header_reader.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

std::optional<FileDType> parse_file_dtype(std::string_view text) {
  for (const FileDType dtype :
       {FileDType::boolean, FileDType::u8, FileDType::i8, FileDType::i16, FileDType::i32, FileDType::i64,
        FileDType::f16, FileDType::bf16, FileDType::f32, FileDType::f64}) {
    if (text == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

// The grammar, as the place where the reader stands:
//   outside → {"name": tensor, …, "__metadata__": {"key": "value", …}}
//   tensor  = {"dtype": text, "shape": [number, …], "data_offsets": [number, number]}
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& text) override {
    switch (place_) {
      case Place::top:
        if (!names_.insert(text).second) fail("the name " + show_name(text) + " comes twice");
        entry_ = TensorEntry{};
        entry_.name = text;
        break;
      case Place::metadata:
        if (header_.metadata.contains(text)) fail("__metadata__ has " + show_name(text) + " twice");
        break;
      default: begin_field(text);
    }
    key_ = std::move(text);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == "__metadata__") {
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      seen_ = 0;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (seen_ != (kDType | kShape | kOffsets)) fail(tensor() + " lacks dtype, shape or data_offsets");
      header_.tensors.push_back(std::move(entry_));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == kDType) unexpected("a list");
    place_ = field_ == kShape ? Place::shape : Place::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) fail(tensor() + ": data_offsets needs two numbers");
    place_ = Place::tensor;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata) {
      header_.metadata.emplace(key_, std::move(text));
    } else if (place_ == Place::tensor && field_ == kDType) {
      const auto dtype = parse_file_dtype(text);
      if (!dtype) {
        fail(tensor() + " has dtype " + show_name(text) +
             "; accepted: BOOL, U8, I8, I16, I32, I64, F16, BF16, F32, F64");
      }
      entry_.dtype = *dtype;
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(tensor() + ": a size of " + std::to_string(value) + " is beyond 63 bits");
      }
      if (entry_.shape.size() == kMaxDimensions) {
        fail(tensor() + " has more than " + std::to_string(kMaxDimensions) + " dimensions");
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets) {
      if (offsets_ == 2) fail(tensor() + ": data_offsets needs two numbers");
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is no whole one of 64 bits");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    fail("no JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };
  static constexpr unsigned kDType = 1;
  static constexpr unsigned kShape = 2;
  static constexpr unsigned kOffsets = 4;

  [[noreturn]] static void fail(const std::string& what) {
    throw UsageError("its header is broken: " + what);
  }
  [[noreturn]] bool unexpected(const char* what) const {
    if (place_ == Place::outside) fail(std::string("it is no JSON object but ") + what);
    if (place_ == Place::metadata) fail("__metadata__ holds " + std::string(what) + "; accepted: texts");
    fail(tensor() + " holds " + what + " where the format has none");
  }
  std::string tensor() const { return "tensor " + show_name(entry_.name); }

  void begin_field(const std::string& text) {
    field_ = text == "dtype" ? kDType : text == "shape" ? kShape : text == "data_offsets" ? kOffsets : 0;
    if (field_ == 0) {
      fail(tensor() + " has the key " + show_name(text) + "; accepted: dtype, shape, data_offsets");
    }
    if ((seen_ & field_) != 0) fail(tensor() + " has " + text + " twice");
    seen_ |= field_;
  }

  SafetensorsHeader header_;
  std::set<std::string> names_;
  Place place_ = Place::outside;
  std::string key_;    // the last one
  TensorEntry entry_;  // being read
  unsigned field_ = 0;
  unsigned seen_ = 0;  // fields of `entry_`
  int offsets_ = 0;
};

}  // namespace

SafetensorsHeader read_header_json(std::string_view json) {
  HeaderReader reader;
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace lockstep
