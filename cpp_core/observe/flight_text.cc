#include "observe/flight_text.h"

#include <string_view>

#include "base/text.h"

namespace horocache::observe {
namespace {

// Writes a JSON object, member by member.
class Object {
 public:
  explicit Object(std::string* out) : out_(out) { *out_ += '{'; }
  ~Object() { *out_ += '}'; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  std::string* Key(const char* key) {
    if (!first_) *out_ += ',';
    first_ = false;
    return &out_->append("\"").append(key).append("\":");
  }
  void Number(const char* key, int64_t value) { *Key(key) += std::to_string(value); }
  void Text(const char* key, std::string_view value) { *Key(key) += JsonText(value); }
  // Writes an array of objects, one line for each element.
  template <typename List, typename Write>
  void Array(const char* key, const List& list, Write&& write) {
    *Key(key) += '[';
    const char* separator = "\n";
    for (const auto& element : list) {
      *out_ += separator;
      Object object(out_);
      write(&object, element);
      separator = ",\n";
    }
    *out_ += ']';
  }

 private:
  std::string* const out_;
  bool first_ = true;
};

template <typename T>
void WriteOperation(Object* object, const T& operation) {
  object->Text("op", wire::OpName(operation.op));
  object->Number("process_set", operation.process_set);
  object->Number("handle", operation.handle);
  object->Number("tensors", operation.tensors);
  object->Number("bytes", operation.bytes);
}

void WritePending(Object* object, const PendingOperation& operation) {
  object->Number("since_ns", operation.submitted_ns);
  object->Text("name", operation.name);
  WriteOperation(object, operation);
}

void WriteEvent(Object* object, const FlightRecorder::Event& event) {
  object->Number("number", static_cast<int64_t>(event.number));
  object->Number("at_ns", event.at_ns);
  object->Text("what", KindName(event.kind));
  object->Text(event.kind == FlightRecorder::Kind::kNote ? "note" : "name", event.text);
  if (event.kind != FlightRecorder::Kind::kNote) WriteOperation(object, event);
  if (event.kind == FlightRecorder::Kind::kStarted) object->Number("sequence", static_cast<int64_t>(event.sequence));
}

void WriteSet(Object* object, const SetMembers& set) {
  object->Number("number", set.number);
  *object->Key("ranks") += '[' + ListText(set.ranks) + ']';
}

}  // namespace

std::string FlightText(const FlightReport& report) {
  std::string out;
  {
    Object object(&out);
    object.Text("horocache", report.rank.version);
    object.Text("job", report.job);
    object.Number("rank", report.rank.rank);
    object.Number("size", report.rank.size);
    object.Text("host", report.rank.host);
    object.Number("pid", report.pid);
    object.Text("why", report.why);
    object.Number("now_ns", report.now_ns);
    object.Number("clock_offset_ns", report.rank.clock_offset_ns);
    object.Array("sets", report.sets, WriteSet);
    object.Array("pending", report.pending, WritePending);
    object.Array("events", report.last.events, WriteEvent);
    object.Text("stacks", report.stacks);
  }
  return out += '\n';
}

}  // namespace horocache::observe
