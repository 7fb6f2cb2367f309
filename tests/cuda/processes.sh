#!/bin/bash
# processes.sh LOCKSTEP RANKS ENGINE PROGRAM WHAT: the ranks as processes over an engine, for at most 90 s. Where one is
# to die the run as a whole fails, and every other must have said its error and ended well, for which it has 40 s.
set -u
lockstep=$1 ranks=$2 engine=$3 program=$4 what=$5
"$program" where-is-no-gpu >/dev/null 2>&1
[ $? -eq 77 ] && { "$program"; exit 77; }
grace=5
dies=
[ "$what" = die ] || [ "$what" = orphans ] && dies=yes grace=40
output=$(LOCKSTEP_ENGINE=$engine timeout -k 10 80 "$lockstep" run -n "$ranks" --grace $grace -- "$program" "$what" 2>&1)
status=$?
echo "$output"
[ -z "$dies" ] && exit $status
told=$(grep -c "over $engine: after .* error: " <<<"$output")
echo "$told of $((ranks - 1)) survivors were told"
[ "$told" -eq $((ranks - 1)) ] && [ "$status" -ne 124 ]
