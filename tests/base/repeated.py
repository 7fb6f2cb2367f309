"""For scripts what repeated.h is for programs: whoever does something again because the machine may have been busy says so.

tools/test_report counts these lines and lists them: a defect that shows in half of the attempts would pass for a busy machine.
"""


def say_repeated(test, seen):
    """`test`: its name, as unittest's id(); `seen`: what it was that the repeated attempt is not judged by."""
    print(f"[ REPEATED ] {test}: {' '.join(seen.split())}", flush=True)
