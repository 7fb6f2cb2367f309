#!/bin/bash
# processes.sh LOCKSTEP RANKS ENGINE PROGRAM WHAT: the ranks as processes over an engine. Where one is to die the run as
# a whole fails, and every other must have said its error and ended well.
set -u
lockstep=$1 ranks=$2 engine=$3 program=$4 what=$5
"$program" where-is-no-gpu >/dev/null 2>&1
[ $? -eq 77 ] && { "$program"; exit 77; }
output=$(LOCKSTEP_ENGINE=$engine timeout 100 "$lockstep" run -n "$ranks" --grace 60 -- "$program" "$what" 2>&1)
status=$?
echo "$output"
[ "$what" != die ] && exit $status
told=$(grep -c "over $engine: after .* error: " <<<"$output")
echo "$told of $((ranks - 1)) survivors were told"
[ "$told" -eq $((ranks - 1)) ] && [ "$status" -ne 124 ]
