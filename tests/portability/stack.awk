# stack.awk - the deepest stack of a public function of ratelimit.h: its own frame and those of the
# functions that it calls, as the compiler's -fstack-usage gives them. Calls are read from the
# assembly, of any processor: jumps, branches and calls by name. What is called through a pointer
# (stores, hooks, clocks) and the compiler's and the C library's own functions are not counted.
#
#     awk -f stack.awk FILE.su FILE.s

function plain(name)
{
    sub(/\.(part|isra|constprop|cold).*/, "", name) # a part of a function, or a copy of it
    sub(/^_/, "", name)                             # Windows, 32 bits
    return name
}

function deepest(name, list, n, i, depth, most)
{
    if (name in depths)
        return depths[name]
    depths[name] = frame[name]
    n = split(calls[name], list, " ")
    for (i = 1; i <= n; i++) {
        depth = deepest(list[i])
        most = depth > most ? depth : most
    }
    return depths[name] = frame[name] + most
}

FNR == NR {
    split($0, field, "\t")
    sub(/\(.*/, "", field[1]) # C++ gives the whole declaration
    sub(/.*[: *]/, "", field[1])
    frame[plain(field[1])] += field[2]
    next
}

/^[A-Za-z_][A-Za-z0-9_.]*:/ {
    name = plain(substr($0, 1, index($0, ":") - 1))
    if (name in frame)
        within = name
}

/^[ \t]*(b|call|j|rcall|rj|tail)[a-z.]*[ \t]/ || /R_MIPS_JALR,/ {
    n = split($0, word, /[^A-Za-z0-9_.]+/)
    for (i = 1; i <= n; i++) {
        name = plain(word[i])
        if (name in frame && name != within)
            calls[within] = calls[within] " " name
    }
}

END {
    for (name in frame)
        if (name ~ /^ratelimit_/ && name !~ /^ratelimit_priv_/ && deepest(name) > most)
            most = deepest(name)
    print most + 0
}
