// The plaintext handshake as two machines over bytes.
#include "net/proof.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "net/tools.h"

namespace lockstep::net {
namespace {

// Lets the two talk until neither has anything to say.
void talk(Proof& dialler, Proof& gate) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [from, to] : {std::pair(&dialler, &gate), std::pair(&gate, &dialler)}) {
      const std::string words = from->to_send();
      Bytes rest = bytes_of(words);
      while (!rest.empty() && to->state() == ProofState::unfinished) {
        const std::size_t count = std::min(rest.size(), to->wants());
        to->take(rest.first(count));
        rest = rest.subspan(count);
        moved = true;
      }
    }
  }
}

TEST(Proof, TwoWithOneKeyConvinceEachOther) {
  const Secret key = Secret::make();
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, kMostHello}) {
    DialProof dialler(key, fresh_nonce(), std::string(length, 'h'));
    GateProof gate(key, fresh_nonce());
    talk(dialler, gate);
    EXPECT_EQ(dialler.state(), ProofState::proven);
    EXPECT_EQ(gate.state(), ProofState::proven);
    EXPECT_EQ(gate.hello(), std::string(length, 'h'));
  }
}

TEST(Proof, TheDiallerFindsOutFirstAndKeepsItsHello) {
  DialProof dialler(Secret::make(), fresh_nonce(), "hello");
  GateProof gate(Secret::make(), fresh_nonce());
  talk(dialler, gate);
  EXPECT_EQ(dialler.state(), ProofState::refused);
  EXPECT_EQ(dialler.refusal(), Refusal::wrong_secret);
  EXPECT_EQ(gate.state(), ProofState::unfinished);
  EXPECT_EQ(gate.wants(), sizeof(Code) + 2);  // nothing came after the greeting
}

TEST(Proof, ADiallerWithAnotherKeyThatGoesOnIsRefused) {
  // One that does not care who answers: it takes a gate of its own key for the answer.
  const Secret wrong = Secret::make();
  const Nonce nonce = fresh_nonce();
  const Nonce of_gate = fresh_nonce();
  DialProof dialler(wrong, nonce, "hello");
  GateProof accomplice(wrong, of_gate);
  GateProof gate(Secret::make(), of_gate);
  const std::string greeting = dialler.to_send();
  gate.take(bytes_of(greeting));
  accomplice.take(bytes_of(greeting));
  const std::string answer = accomplice.to_send();
  dialler.take(bytes_of(answer).first(dialler.wants()));
  dialler.take(bytes_of(answer).subspan(kMagicBytes - 1));
  const std::string claim = dialler.to_send();
  ASSERT_FALSE(claim.empty());
  gate.take(bytes_of(claim).first(gate.wants()));
  gate.take(bytes_of(claim).subspan(sizeof(Code) + 2));
  EXPECT_EQ(gate.state(), ProofState::refused);
  EXPECT_EQ(gate.refusal(), Refusal::wrong_secret);
  EXPECT_EQ(gate.hello(), "");
}

TEST(Proof, AGateIsNotConvincedByItsOwnWords) {
  const Secret key = Secret::make();
  GateProof gate(key, fresh_nonce());
  GateProof mirror(key, fresh_nonce());
  DialProof dialler(key, fresh_nonce(), "");
  gate.take(bytes_of(dialler.to_send()));
  const std::string answer = gate.to_send();
  // The code of its answer sent back as the dialler's.
  gate.take(bytes_of(answer).last(sizeof(Code)));
  gate.take(bytes_of(std::string_view("\0\0", 2)));
  EXPECT_EQ(gate.refusal(), Refusal::wrong_secret);
}

TEST(Proof, ALongHelloIsRefusedBeforeItIsRead) {
  GateProof gate(Secret::make(), fresh_nonce());
  gate.take(bytes_of(std::string(kMagic.data(), kMagic.size()) + std::string(32, 'n')));
  gate.take(bytes_of(std::string(32, 'c') + "\x01\x01"));  // 257
  EXPECT_EQ(gate.refusal(), Refusal::long_hello);
  EXPECT_THROW(DialProof(Secret::make(), fresh_nonce(), std::string(kMostHello + 1, 'h')), UsageError);
}

TEST(Proof, OtherLanguagesAreToldApart) {
  GateProof tls(Secret::make(), fresh_nonce());
  tls.take(bytes_of("\x16\x03\x01" + std::string(37, 'x')));
  EXPECT_EQ(tls.refusal(), Refusal::speaks_tls);
  GateProof http(Secret::make(), fresh_nonce());
  http.take(bytes_of("GET / HTTP/1.1\r\nHost: localhost:29500\r\n\r\n"));
  EXPECT_EQ(http.refusal(), Refusal::not_lockstep);
  EXPECT_EQ(http.to_send(), "");
}

}  // namespace
}  // namespace lockstep::net
