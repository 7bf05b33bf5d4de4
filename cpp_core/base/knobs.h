// The settings of one runtime, typed, with the source of each value. See knobs.def.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horocache {

enum class KnobType { Int, Float, Bool, String, Choice };
enum class KnobScope { agree, rank };
enum class KnobSource { kDefault, kEnvironment, kHorovodAlias, kArgument };

std::string_view KnobSourceName(KnobSource source);

struct KnobInfo {
  std::string_view name;
  KnobType type;
  std::string_view default_value;
  std::string_view minimum;  // of a Choice: the allowed words, separated by |
  std::string_view maximum;
  std::string_view horovod_alias;  // empty if Horovod has none
  KnobScope scope;
  std::string_view doc;
};

const std::vector<KnobInfo>& KnobTable();

namespace knob_types {
using Int = int64_t;
using Float = double;
using Bool = bool;
using String = std::string;
using Choice = std::string;
}  // namespace knob_types

struct Knobs {
#define HC_KNOB(name, type, default_value, minimum, maximum, alias, scope, doc) knob_types::type name{};
#include "base/knobs.def"
#undef HC_KNOB

  // Text and source of every knob, in the order of KnobTable().
  struct Entry {
    std::string text;
    KnobSource source = KnobSource::kDefault;
  };
  std::vector<Entry> entries;

  // True if the knob was not set, so that it has its default.
  bool IsDefault(std::string_view name) const;

  // An argument takes precedence over HOROCACHE_X, that over HOROVOD_X, and that over the default. kInvalidArgument,
  // with the name, the value, the allowed values and the nearest valid name, for unknown HOROCACHE_ names and
  // arguments, and for values that do not parse or are out of range. `environment` is the result of ReadEnvironment();
  // tests pass their own.
  static StatusOr<Knobs> Parse(const std::map<std::string, std::string>& environment,
                               const std::map<std::string, std::string>& arguments);

  // The knobs of scope `agree` as lines "name=value", for the handshake.
  std::string AgreeText() const;
};

}  // namespace horocache
