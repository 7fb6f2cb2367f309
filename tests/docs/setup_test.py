"""Runs tools/setup against a pretended package system that records what it is asked: setup_test.py TOOL"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DPKG_QUERY = """#!/bin/sh
for package in "$@"; do :; done
grep -qx -- "$package" "{folder}/installed" && printf installed
"""
APT_GET = """#!/bin/sh
echo "$*" >>"{folder}/calls"
case $1 in
  update) touch "{folder}/updated" ;;
  install) {install} ;;
esac
"""
ID = "#!/bin/sh\necho {user}\n"


class Setup(unittest.TestCase):
    def setup(self, missing, user=0, install="true", flags=(), debian=True):
        """Returns (exit status, output, the calls of apt-get)."""
        listed = subprocess.run([TOOL, "--lint", "--print"], check=True, stdout=subprocess.PIPE, text=True)
        packages = listed.stdout.split()
        for name in missing:
            self.assertIn(name, packages)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "installed").write_text("\n".join(p for p in packages if p not in missing) + "\n")
            programs = {"id": ID.format(user=user)}
            if debian:
                programs["dpkg-query"] = DPKG_QUERY.format(folder=folder)
                programs["apt-get"] = APT_GET.format(folder=folder, install=install.format(folder=folder))
            for name, text in programs.items():
                (path / name).write_text(text)
                (path / name).chmod(0o755)
            for name in ("sh", "grep", "mktemp", "rm", "cat", "touch"):
                for place in ("/bin", "/usr/bin"):
                    if os.path.exists(f"{place}/{name}") and not (path / name).exists():
                        (path / name).symlink_to(f"{place}/{name}")
            done = subprocess.run([TOOL, *flags], env={"PATH": folder}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            calls = (path / "calls").read_text().splitlines() if (path / "calls").exists() else []
            return done.returncode, done.stdout, calls

    def test_quiet_when_nothing_is_missing(self):
        self.assertEqual(self.setup([]), (0, "", []))

    def test_quiet_for_users_too(self):
        self.assertEqual(self.setup([], user=1000), (0, "", []))

    def test_installs_what_is_missing_and_only_that(self):
        status, output, calls = self.setup(["libhwy-dev", "ccache"])
        self.assertEqual(status, 0, output)
        self.assertEqual(calls, ["install -y --no-install-recommends ccache libhwy-dev"])
        self.assertEqual(output, "tools/setup: installing ccache libhwy-dev\n")

    def test_updates_the_lists_when_they_are_stale(self):
        status, _, calls = self.setup(["cmake"], install='[ -e "{folder}/updated" ]')
        self.assertEqual(status, 0)
        self.assertEqual([call.split()[0] for call in calls], ["install", "update", "install"])

    def test_failure_shows_why_and_the_command(self):
        status, output, _ = self.setup(["cmake"], install="echo no space left; exit 100")
        self.assertEqual(status, 1)
        self.assertIn("no space left", output)
        self.assertIn("apt-get update && apt-get install -y --no-install-recommends cmake", output)

    def test_says_the_command_when_not_root(self):
        status, output, calls = self.setup(["libgloo-dev"], user=1000)
        self.assertEqual((status, calls), (1, []))
        self.assertIn("sudo apt-get install -y --no-install-recommends libgloo-dev\n", output)

    def test_lint_tools_only_when_asked(self):
        self.assertEqual(self.setup(["clang-tidy"]), (0, "", []))
        _, _, calls = self.setup(["clang-tidy"], flags=["--lint"])
        self.assertEqual(calls, ["install -y --no-install-recommends clang-tidy"])

    def test_elsewhere_it_says_what_is_needed(self):
        status, output, _ = self.setup([], debian=False)
        self.assertEqual(status, 0)
        self.assertIn("Needed (Debian's names): g++ ", output)

    def test_unknown_flag(self):
        status, output, _ = self.setup([], flags=["--all"])
        self.assertEqual(status, 2)
        self.assertEqual(output, "tools/setup: unknown flag '--all'; accepted: --lint, --fuzz, --print\n")


TOOL = sys.argv.pop(1)
unittest.main()
