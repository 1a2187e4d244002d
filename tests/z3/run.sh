#!/bin/sh
# The laws of the arithmetic, for all values of full width: what z3 proves. Each file says before
# each question what z3 must answer: unsat, the claim holds for all values; sat, a mistake is found.
#
#     run.sh    the last line is "N passed, N failed"
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/portability/count.sh
have z3 z3 || finish
proven=0 found=0
for file in tests/z3/*.smt2; do
    said=$( (
        ulimit -t 300
        z3 "$file"
    ) 2>&1)
    what=
    while IFS= read -r line; do
        case $what in
        '') what=$line ;;
        "$line: "*)
            pass
            case $line in
            unsat) proven=$((proven + 1)) && echo "proven: ${what#*: }" ;;
            sat) found=$((found + 1)) && echo "found: ${what#*: }" ;;
            esac
            what=
            ;;
        *)
            fail "$file: $what, but z3 says: $line"
            what=
            ;;
        esac
    done <<END
$said
END
    [ -z "$what" ] || fail "$file: $what: z3 ended early"
    [ "$(grep -c check-sat "$file")" = "$(grep -c '^(echo' "$file")" ] || fail "$file: a question without an answer"
done
echo "$proven proven, $found mistakes found"
finish
