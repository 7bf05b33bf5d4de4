// Start-up messages and their bytes: valid ones, invalid ones, and the descriptors that travel with them.
#include "net/bootstrap/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <string>

#include "net/bootstrap/connection.h"

namespace horocache::net {
namespace {

Hello SomeHello(uint32_t rank) {
  Hello hello;
  hello.rank = rank;
  hello.size = 4;
  hello.pid = 1234;
  hello.byte_order = OwnByteOrder();
  hello.job = std::string("a job\0with a zero", 17);
  hello.handshake = {"0.1.0", 3, 7, "a=1\nb=2=3\n"};
  return hello;
}

TEST(Handshake, AHelloSurvivesEncodingAndDecoding) {
  const Hello hello = SomeHello(2);
  const auto decoded = DecodeHello(EncodeHello(hello));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->rank, 2u);
  EXPECT_EQ(decoded->size, 4u);
  EXPECT_EQ(decoded->pid, 1234u);
  EXPECT_EQ(decoded->byte_order, OwnByteOrder());
  EXPECT_EQ(decoded->job, hello.job);
  EXPECT_EQ(decoded->handshake.version, "0.1.0");
  EXPECT_EQ(decoded->handshake.protocol, 3u);
  EXPECT_EQ(decoded->handshake.epoch, 7u);
  EXPECT_EQ(decoded->handshake.agree, "a=1\nb=2=3\n");
}

TEST(Handshake, NoPrefixOfAHelloDecodes) {
  const std::string bytes = EncodeHello(SomeHello(1));
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(DecodeHello(bytes.substr(0, length))) << length;
  EXPECT_TRUE(DecodeHello(bytes + "of a later version"));
}

TEST(Handshake, RandomBytesAreNotReadBeyondTheirEnd) {
  std::mt19937 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = i % 2 == 0 ? EncodeHello(SomeHello(1)) : std::string(random() % 100, '\0');
    for (size_t k = 0; k < 4 && !bytes.empty(); ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)DecodeHello(bytes);
    (void)DecodeStatus(bytes);
    (void)DecodeNumbers(bytes);
  }
}

TEST(Handshake, AStatusOfAnUnknownCodeIsRefused) {
  const auto decoded = DecodeStatus(EncodeStatus(Status(StatusCode::kVersionSkew, "why")));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->code(), StatusCode::kVersionSkew);
  EXPECT_EQ(decoded->message(), "why");
  std::string bytes = EncodeStatus(Status::Ok());
  bytes[0] = 100;
  EXPECT_FALSE(DecodeStatus(bytes));
}

TEST(Handshake, EqualHellosHaveNoDifferences) {
  const Hello zero = SomeHello(0), one = SomeHello(1);
  EXPECT_EQ(Differences({&zero, &one}), "");
}

TEST(Handshake, ByteOrderIsCompared) {
  const Hello zero = SomeHello(0);
  Hello one = SomeHello(1);
  std::reverse(one.byte_order.begin(), one.byte_order.end());
  EXPECT_NE(Differences({&zero, &one}).find("byte order: "), std::string::npos);
}

TEST(Handshake, ValuesOfOtherProcessesAreShortenedAndPrintable) {
  const Hello zero = SomeHello(0);
  Hello one = SomeHello(1);
  one.handshake.agree = "a=\x1b[31m" + std::string(5000, 'x') + "\nb=2=3\n";
  const std::string text = Differences({&zero, &one});
  EXPECT_LT(text.size(), 300u);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  for (int i = 0; i < 1000; ++i) one.handshake.agree += "n" + std::to_string(i) + "=1\n";
  EXPECT_LT(Differences({&zero, &one}).size(), 8000u);
}

TEST(Handshake, RanksAreNamedInWords) {
  EXPECT_EQ(NameRanks({3}), "rank 3");
  EXPECT_EQ(NameRanks({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(NameRanks({1, 2, 5}), "ranks 1, 2 and 5");
  EXPECT_EQ(NameRanks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 others");
}

struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a = std::make_unique<Connection>(UniqueFd(fds[0]));
    b = std::make_unique<Connection>(UniqueFd(fds[1]));
  }
  std::unique_ptr<Connection> a, b;
};

TEST(Connection, DescriptorsArriveWithTheirMessages) {
  Ends ends;
  std::vector<UniqueFd> null;
  std::vector<int> borrowed;
  for (size_t i = 0; i < Connection::kMaxFds; ++i) {
    null.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    borrowed.push_back(null.back().get());
  }
  ends.a->Queue(MessageType::kHello, "no descriptors");
  ends.a->Queue(MessageType::kDescriptors, std::string(100'000, 'x'), borrowed);
  ends.a->Queue(MessageType::kReady, "one", {borrowed[0]});
  std::vector<Message> got;
  for (int turn = 0; turn < 1000 && got.size() < 3; ++turn) {
    EXPECT_EQ(ends.a->Flush(), Connection::Io::kOk);
    EXPECT_EQ(ends.b->Fill(), Connection::Io::kOk);
    for (Message message; ends.b->Take(&message);) got.push_back(std::move(message));
  }
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(got[0].fds.empty());
  EXPECT_EQ(got[1].payload, std::string(100'000, 'x'));
  EXPECT_EQ(got[1].fds.size(), Connection::kMaxFds);
  EXPECT_EQ(got[2].payload, "one");
  ASSERT_EQ(got[2].fds.size(), 1u);
  EXPECT_EQ(fcntl(got[2].fds[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST(Connection, InvalidBytesAreDetectedAtTheFirstByte) {
  for (const std::string& bytes :
       {std::string("X"), std::string("HCB2"), std::string("HCB1\x63\0\0\0\0\0\0\0", 12),
        std::string("HCB1\1\xff\0\0\0\0\0\0", 12), std::string("HCB1\1\0\0\0\xff\xff\xff\x7f", 12)}) {
    Ends ends;
    ASSERT_EQ(send(ends.a->fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(ends.b->Fill(), Connection::Io::kGarbage);
    Message message;
    EXPECT_FALSE(ends.b->Take(&message));
  }
}

TEST(Connection, MessagesSentBeforeTheEndAreReceived) {
  Ends ends;
  ends.a->Queue(MessageType::kOutcome, "last words");
  ends.a->Flush();
  ends.a.reset();
  EXPECT_EQ(ends.b->Fill(), Connection::Io::kOk);
  Message message;
  ASSERT_TRUE(ends.b->Take(&message));
  EXPECT_EQ(message.payload, "last words");
  EXPECT_EQ(ends.b->Fill(), Connection::Io::kEnd);
}

TEST(Connection, BytesBehindAMessageStayInTheSocket) {
  Ends ends;
  ends.a->Queue(MessageType::kOutcome, "start");
  ends.a->Flush();
  ASSERT_EQ(send(ends.a->fd(), "notice", 6, MSG_NOSIGNAL), 6);
  ASSERT_EQ(ends.b->Fill(), Connection::Io::kOk);
  Message message;
  ASSERT_TRUE(ends.b->Take(&message));
  const UniqueFd socket = ends.b->TakeSocket();
  std::string rest(10, '\0');
  ASSERT_EQ(recv(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT), 6);
  EXPECT_EQ(rest.substr(0, 6), "notice");
}

// Rank 0 of a large job sends the descriptors of all ranks at once.
TEST(Connection, AnyNumberOfDescriptorsMayWaitToBeRead) {
  Ends ends;
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  constexpr size_t kEach = 64, kMessages = 8;
  for (size_t i = 0; i < kMessages; ++i) {
    ends.a->Queue(MessageType::kDescriptors, std::to_string(i), std::vector<int>(kEach, file.get()));
  }
  ASSERT_EQ(ends.a->Flush(), Connection::Io::kOk);
  ASSERT_TRUE(ends.a->flushed());
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(ends.b->Fill(), Connection::Io::kOk);
    Message message;
    ASSERT_TRUE(ends.b->Take(&message));
    EXPECT_EQ(message.payload, std::to_string(i));
    EXPECT_EQ(message.fds.size(), kEach);
  }
}

}  // namespace
}  // namespace horocache::net
