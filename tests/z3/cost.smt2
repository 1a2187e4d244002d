; ratelimit_priv_cost: n tokens as a span, over whole numbers: no product or sum is above 2^64 - 1,
; and the span is exactly n x (interval_ns + interval_part / parts).
(set-logic QF_NIA)
(set-option :timeout 60000)
(declare-const n Int)
(declare-const i Int)  ; interval_ns
(declare-const d Int)  ; parts
(declare-const r Int)  ; interval_part
(declare-const q Int)  ; n / d
(declare-const m Int)  ; n % d
(declare-const e Int)  ; m x r / d
(declare-const x Int)  ; m x r % d
(define-fun long () Int 4611686018427387904)
(define-fun two64 () Int 18446744073709551616)
(assert (and (>= n 1) (<= n 9223372036854775807) (>= i 0) (>= d 1) (<= d 16777216) (>= r 0) (< r d)))
(assert (and (= n (+ (* q d) m)) (>= q 0) (>= m 0) (< m d)))
(assert (and (= (* m r) (+ (* e d) x)) (>= e 0) (>= x 0) (< x d)))
; the guard: n <= floor(2^62 / interval_ns), or interval_ns is 0
(assert (or (= i 0) (<= (* n i) long)))
(define-fun extra () Int (+ (* q r) e))
; of r < d, which z3 need not find
(assert (and (<= (* q r) (* q (- d 1))) (<= (* m r) (* m (- d 1)))))
(echo "unsat: n % parts x interval_part fits")
(push) (assert (>= (* m r) two64)) (assert (<= (* m r) (* 16777216 16777216))) (check-sat) (pop)
(echo "unsat: what the fraction adds is not above n")
(push) (assert (> e m)) (assert (<= (* e d) (* m r))) (assert (>= (* e d) (* (+ m 1) d))) (check-sat) (pop)
(echo "unsat: the whole span fits in 64 bits")
(push) (assert (<= e m)) (assert (<= extra n)) (assert (=> (> i 0) (<= n (* n i)))) (assert (>= (+ (* n i) extra) two64)) (check-sat) (pop)
(echo "unsat: it is exact")
(push) (assert (not (= (* n r) (+ (* extra d) x)))) (assert (= (* n r) (+ (* q d r) (* m r)))) (check-sat) (pop)
(echo "sat: without the guard it does not fit (a mistake that must be found)")
(reset)
(set-logic QF_NIA)
(declare-const n Int)
(assert (and (>= n 1) (<= n 9223372036854775807)))
(assert (>= (* n 3) 18446744073709551616))
(check-sat)
