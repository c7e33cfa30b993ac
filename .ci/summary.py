"""Sums up pytest's JUnit reports: lists what was skipped and why, then counts the tests of all.

usage: summary.py REPORT.xml ...

The exit status is 1 if a report is missing, a test failed, or a skip has an unexpected reason.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

# What CI cannot give to every machine. It installs or makes everything else, so any other reason
# means that a test has silently ceased to run.
EXPECTED = (
    "needs chromium on PATH",
    "needs root, and Debian's packages slurm-wlm and munge",
    "TRANSFORMER_JAX_DATA names no folder",
    "nothing can be mounted here",
)


def main(*reports: str) -> int:
    skips: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    mistakes = []
    for report in map(Path, reports):
        if not report.exists():
            mistakes.append(f"the {report.stem} tests did not run to their end")
            continue
        for suite in ElementTree.parse(report).iter("testsuite"):
            counts.update({name: int(suite.attrib[name]) for name in "tests skipped".split()})
            counts["failed"] += int(suite.attrib["failures"]) + int(suite.attrib["errors"])
            skips.update(str(skip.text) for skip in suite.iter("skipped"))
    for skip, count in sorted(skips.items()):
        print(f"skipped {count}: {skip}")
        if not any(reason in skip for reason in EXPECTED):
            mistakes.append(f"this reason to skip is not expected: {skip}")
    for mistake in mistakes:
        print(f"error: {mistake}")
    passed = counts["tests"] - counts["skipped"] - counts["failed"]
    print(f"{passed} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if mistakes or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
