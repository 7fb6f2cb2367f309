# The front door. Every target does all it needs on a fresh Debian 12: it installs what is missing
# (tools/setup), configures, builds, runs. The work itself is in CMakePresets.json and tools/.
.DEFAULT_GOAL := build
.PHONY: build demo test test-all test-fast test-loaded asan tsan fuzz soak bench lint format clean setup help

build: setup  ## build the release preset: build/release/bin/lockstep
	@tools/build release

# CIFAR10=folder trains on the real CIFAR-10 (its binary files) for ten epochs, else three on drawn shapes.
ifdef CIFAR10
demo_data := --data cifar10 --data-dir "$(CIFAR10)" --epochs 10
else
demo_data := --data shapes --epochs 3
endif

demo: setup  ## build what it needs, train ResNet-18 on two workers, say where the figures are
	@TARGETS="lockstep_cli lockstep_train" tools/build release
	build/release/bin/lockstep train --model resnet18 $(demo_data) -n 2 --accumulate 2 --lane-batch 32 \
	  --optimizer adamw --lr 5e-4 --weight-decay 1e-4 --out runs/demo --overwrite

test:  ## within 40 minutes: release, then what is for the address and the thread sanitizer
	@tools/test release asan tsan

test-all:  ## every test of every room and preset, then fuzzing: hours
	@FUZZ_SECONDS=$(or $(SECONDS),600) tools/test --all release asan tsan

test-loaded: setup  ## RUNS (default 10) of make test's release tests, each beside LOAD (default 4) busy loops: three hours
	@tools/build release
	@tools/test_loaded --runs $(or $(RUNS),10) --load $(or $(LOAD),4)

test-fast:  ## the quick tests of the release build
	@tools/test --fast release

asan:  ## the tests under the address and undefined-behaviour sanitizers
	@tools/test asan

tsan:  ## the tests under the thread sanitizer
	@tools/test tsan

fuzz: setup  ## hostile bytes for every parser, SECONDS each (default 60)
	@tools/setup --fuzz
	@tools/fuzz $(or $(SECONDS),60)

soak: setup  ## kills, signals, file errors and full disks for training runs: MINUTES (default 10), ROUNDS, SEED, JOBS
	@TARGETS="lockstep_cli lockstep_train fault_shim" tools/build release
	@tools/soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) \
	  --jobs $(or $(JOBS),1)

bench: build  ## every collective against its peers, then the reduction kernels
	@tools/bench

lint:  ## include arrows, formatting, clang-tidy
	@tools/setup --lint
	@tools/lint

format:  ## rewrite the sources in the project's format
	@tools/setup --lint
	@tools/lint --fix-format

clean:  ## remove everything that was built
	rm -rf build

setup:  ## install what is missing (quiet when nothing is)
	@tools/setup

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
