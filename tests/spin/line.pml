/* line.pml - the protocol of a line of the table, in the words of ratelimit.h (>>implementation:
 * table, rules 1 to 4), for spin.
 *
 * One line with SLOTS places is the home of every key. Time stands still, and a take is of one
 * token. full_ns is what a bucket owes, in tokens, up to WINDOW; 0 is full again. A bucket that was
 * freed has rest 0, and FREE as full_ns, which is no time that it had before. Each process is a thread
 * that does one operation of the kinds below, each step of it on its own.
 *
 * A waiter takes over the lock of a dead holder, and at most STEALS times that of a living one; at
 * most DEATHS processes stop for ever, anywhere while they hold the lock.
 *
 * Checked at each end (and that there is one: nobody waits for ever):
 *
 *     law      what a key was told to have, and what it can still take, is at most WINDOW; one more
 *              WINDOW for each stolen lock. Who died while it freed a bucket may have lost what
 *              was charged meanwhile: one more WINDOW.
 *     places   no key has two places, or one more for each stolen lock
 *     lock     is held by nobody, or by a dead process
 *
 * MISTAKE is 0, or the number of an error that must be found, see run.sh.
 */
#ifndef SLOTS
#  define SLOTS 2
#endif
#ifndef WINDOW
#  define WINDOW 2
#endif
#ifndef STEALS
#  define STEALS 0
#endif
#ifndef DEATHS
#  define DEATHS 0
#endif
#ifndef INHERIT
#  define INHERIT 0
#endif
#ifndef MISTAKE
#  define MISTAKE 0
#endif
#ifndef THREADS /* three processes */
#  define THREADS run take(1); run take(1); run take(2)
#endif
#ifndef OWED /* by key 1, which is there from the beginning; full again: 0 */
#  define OWED 1
#endif
#if MISTAKE == 7
#  define FREE 0
#else
#  define FREE 200
#endif

#define debt(f) (f == FREE -> 0 : f)

byte lock, holder;
byte tag[SLOTS], full_ns[SLOTS];
bit rest[SLOTS];
bool dead[8];
byte told[4], given, running, steals, deaths, lost;

#if DEATHS > 0
#  define MAY_DIE                                                                                  \
    if                                                                                             \
    :: atomic { deaths < DEATHS -> deaths++; dead[_pid] = true; goto gone }                        \
    :: true                                                                                        \
    fi
#else
#  define MAY_DIE skip
#endif

/* ratelimit_priv_wait_lock: until the lock is free; word is what it says then. */
inline wait_lock()
{
    do
    :: atomic { !(lock & 1) -> word = lock; break }
    :: atomic { (lock & 1) && dead[holder] -> lock++ }
    :: atomic { (lock & 1) && !dead[holder] && steals < STEALS -> steals++; lock++ }
    od
}

/* ratelimit_priv_search */
inline search()
{
    slot = 0;
    there = false;
    do
    :: slot < SLOTS && !there ->
        if
        :: tag[slot] == key -> there = true; old_tag = key
        :: else -> slot++
        fi
    :: else -> break
    od
}

/* ratelimit_priv_choose: the first place that is free; under INHERIT else the one that owes least.
 * slot is SLOTS if there is none. */
inline choose()
{
    at = 0;
    slot = SLOTS;
    do
    :: at < SLOTS ->
        t = tag[at];
        r = rest[at];
        f = full_ns[at];
        if
        :: t == 0 || r == 0 || debt(f) == 0 ->
            slot = at; old_tag = t; old_rest = r; old = f;
            break
        :: else ->
            if
            :: INHERIT && (slot == SLOTS || f < old) -> slot = at; old_tag = t; old_rest = r; old = f
            :: else
            fi;
            at++
        fi
    :: else -> break
    od
}

/* ratelimit_priv_probe: there, slot, old, old_rest, old_tag under word; begins again if the lock
 * has changed meanwhile. */
inline probe(make)
{
    do
    :: wait_lock();
        search();
        if
        :: there -> old_rest = rest[slot]; old = full_ns[slot]
        :: !there && make -> choose()
        :: else
        fi;
        if
        :: lock == word -> break
        :: else
        fi
    od
}

/* What it owes before the decision: a newcomer nothing, or what it inherits. */
#define owes ((there || (INHERIT && old_tag)) && old_rest -> debt(old) : 0)

/* ratelimit_priv_store_full, for a bucket that is freed: rest first. */
inline store_free()
{
    if
    :: atomic { MISTAKE != 2 && rest[slot] == old_rest -> rest[slot] = 0 }
    :: MISTAKE == 2 -> skip
    :: else -> done = false
    fi;
    MAY_DIE;
    if
    :: done ->
        if
        :: atomic { full_ns[slot] == old -> full_ns[slot] = FREE }
        :: else ->
            done = false;
            /* who is killed here has lost what was charged */
            MAY_DIE;
            if
            :: atomic { lock == word + 1 && rest[slot] == 0 && MISTAKE != 2 && MISTAKE != 6 -> rest[slot] = old_rest }
            :: else
            fi
        fi
    :: else
    fi;
    if
    :: MISTAKE == 2 && done -> rest[slot] = 0
    :: else
    fi
}

/* ratelimit_priv_store_full and ratelimit_priv_store_rest */
inline store_debt()
{
    if
    :: atomic { full_ns[slot] == old || MISTAKE == 3 -> full_ns[slot] = after }
    :: else -> done = false
    fi;
    MAY_DIE;
    if
    :: done ->
        if
        :: atomic { rest[slot] == old_rest -> rest[slot] = 1 }
        :: else -> done = false
        fi
    :: else
    fi;
    MAY_DIE;
    if
    :: done && !there ->
        if
        :: atomic { tag[slot] == old_tag -> tag[slot] = key }
        :: else -> done = false
        fi
    :: else
    fi;
    MAY_DIE
}

/* ratelimit_priv_commit: done if it is stored. */
inline commit()
{
    done = true;
    if
    :: atomic { lock == word || MISTAKE == 1 -> lock = word + 1; holder = _pid }
    :: else -> done = false
    fi;
    if
    :: done ->
        MAY_DIE;
        if
        :: after == FREE -> store_free()
        :: else -> store_debt()
        fi;
        if
        :: atomic { lock == word + 1 -> lock++ }
        :: else
        fi
    :: else
    fi
}

/* ratelimit_priv_take_line, ratelimit_priv_take_again, then ratelimit_priv_table_slow. */
proctype take(byte key)
{
    byte word, slot, at, t, f, old, old_tag, after;
    bit r, old_rest, there, done;

    word = lock;
    if
    :: word & 1 -> goto general
    :: else
    fi;
    search();
    if
    :: !there -> goto general
    :: else
    fi;
    if
    :: MISTAKE != 4 -> old = full_ns[slot]; old_rest = rest[slot]
    :: else -> old_rest = rest[slot]; old = full_ns[slot]
    fi;
    if
    :: !old_rest -> goto general
    :: old_rest && debt(old) + 1 > WINDOW ->
        if
        :: lock == word -> goto end
        :: else -> goto general
        fi
    :: else
    fi;
    if
    :: atomic { full_ns[slot] == old -> full_ns[slot] = debt(old) + 1 }
    :: else -> goto general
    fi;
    if
    :: atomic { lock == word || MISTAKE == 8 -> told[key]++; goto end }
    :: else
    fi;
    if
    :: MISTAKE != 5 -> wait_lock()
    :: else
    fi;
    if
    :: tag[slot] != key -> skip
    :: else ->
        if
        :: atomic { rest[slot] == 1 -> told[key]++; goto end }
        :: else
        fi
    fi;

general:
    do
    :: probe(true);
        if
        :: !there && slot == SLOTS -> break /* no room */
        :: else
        fi;
        after = owes + 1;
        if
        :: after > WINDOW -> break /* refused */
        :: else
        fi;
        commit();
        if
        :: atomic { done -> told[key]++; break }
        :: else
        fi
    od;
end:
    running--;
    goto over;
gone:
    running--;
over:
    skip
}

/* REFUND of one token: a bucket that owes nothing after it is freed. */
proctype refund(byte key)
{
    byte word, slot, at, t, f, old, old_tag, after;
    bit r, old_rest, there, done;
    given++;
    do
    :: probe(false);
        if
        :: !there || owes == 0 -> break
        :: else
        fi;
        after = (owes == 1 -> FREE : owes - 1);
        commit();
        if
        :: done -> break
        :: else
        fi
    od;
    running--;
    goto over;
gone:
    lost++;
    running--;
over:
    skip
}

/* ratelimit_table_sweep: frees what is full again. */
proctype sweep()
{
    byte word, slot, at, t, f, old, old_tag, after, key;
    bit r, old_rest, there, done;
    after = FREE;
    there = true;
    do
    :: slot < SLOTS ->
        wait_lock();
        old_tag = tag[slot];
        old_rest = rest[slot];
        old = full_ns[slot];
        if
        :: lock != word -> skip
        :: lock == word && (!old_tag || !old_rest || debt(old) > 0) -> slot++
        :: else ->
            commit();
            if
            :: done -> slot++
            :: else
            fi
        fi
    :: else -> break
    od;
    running--;
    goto over;
gone:
    lost++;
    running--;
over:
    skip
}

/* All or none of the keys 1 and 2, which are there: ratelimit_priv_commit_all. */
proctype both()
{
    byte word, i, old[2], stored;
    bit done;
    do
    :: wait_lock();
        old[0] = full_ns[0];
        old[1] = full_ns[1];
        if
        :: lock != word -> skip
        :: lock == word && (debt(old[0]) + 1 > WINDOW || debt(old[1]) + 1 > WINDOW) -> break
        :: else ->
            if
            :: atomic { lock == word -> lock++; holder = _pid; done = true }
            :: else -> done = false
            fi;
            if
            :: done ->
                stored = 0;
                do
                :: done && stored < 2 ->
                    if
                    :: atomic { full_ns[stored] == old[stored] -> full_ns[stored] = debt(old[stored]) + 1; stored++ }
                    :: else -> done = false
                    fi;
                    MAY_DIE
                :: else -> break
                od;
                i = 0;
                do
                :: !done && i < stored && MISTAKE != 9 -> /* ratelimit_priv_take_back */
                    if
                    :: atomic { lock == word + 1 -> full_ns[i] = full_ns[i] - 1 }
                    :: else
                    fi;
                    MAY_DIE;
                    i++
                :: else -> break
                od;
                if
                :: atomic { lock == word + 1 -> lock++ }
                :: else
                fi;
                if
                :: atomic { done -> told[1]++; told[2]++; break }
                :: else
                fi
            :: else
            fi
        fi
    od;
    running--;
    goto over;
gone:
    running--;
over:
    skip
}

init
{
    byte key, at, places, has, least;
    d_step {
        tag[0] = 1;
        full_ns[0] = OWED;
        rest[0] = 1;
#ifdef TWO_KEYS
        tag[1] = 2;
        full_ns[1] = OWED;
        rest[1] = 1;
#endif
    }
    running = 3;
    atomic { THREADS }
    running == 0;
    assert(!(lock & 1) || dead[holder]);
    for (key : 1 .. 3) {
        places = 0;
        least = WINDOW;
        has = 255;
        for (at : 0 .. SLOTS - 1) {
            least = ((!tag[at] || !rest[at] || debt(full_ns[at]) == 0) -> 0 : (INHERIT && full_ns[at] < least -> full_ns[at] : least));
            if
            :: tag[at] == key ->
                places++;
                has = (has != 255 -> has : (rest[at] -> (debt(full_ns[at]) < WINDOW -> WINDOW - debt(full_ns[at]) : 0) : WINDOW))
            :: else
            fi
        }
        has = (has == 255 -> WINDOW - least : has);
        assert(places <= 1 + steals);
#ifdef TWO_KEYS
        assert(told[key] + has + (key <= 2 -> OWED : 0) <= WINDOW + given + WINDOW * steals + WINDOW * lost);
#ifdef EXACT
        assert(key == 3 || told[key] + has + OWED >= WINDOW);
#endif
#else
        assert(told[key] + has + (key == 1 -> OWED : 0) <= WINDOW + given + WINDOW * steals + WINDOW * lost);
#endif
    }
}
