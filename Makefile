# The front door. Every target does all it needs on a fresh Debian 12: it installs what is missing
# (tools/setup), configures, builds, runs. The work itself is in CMakePresets.json and tools/.
.DEFAULT_GOAL := build
.PHONY: build demo test test-fast asan tsan bench lint format clean setup help

build: setup  ## build the release preset: build/release/bin/lockstep
	@tools/build release

demo: build  ## build, start two workers, show the benchmark's table
	build/release/bin/lockstep bench all_reduce -n 2 --sizes 4K,64K,1M,25M --engines shm,mpi,gloo

test: setup  ## every test: release, then under the address and the thread sanitizer
	@tools/test release asan tsan

test-fast: setup  ## the quick tests of the release build
	@tools/test --fast release

asan: setup  ## the tests under the address and undefined-behaviour sanitizers
	@tools/test asan

tsan: setup  ## the tests under the thread sanitizer
	@tools/test tsan

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
