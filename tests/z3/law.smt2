; Never more than burst + rate x time: the induction step, for times without end. debt is what is
; owed (a time, with its fraction: a real number), S all costs that were allowed since t0. Claim:
; S <= window + (now - t0), kept by every allowed take; then tokens = S / interval are at most
; burst + rate x time. The invariant: S <= debt + (now - t0), and debt <= window.
(set-logic QF_LRA)
(declare-const window Real)
(declare-const debt Real)
(declare-const cost Real)
(declare-const S Real)
(declare-const since Real) ; now - t0
(declare-const pass Real)  ; time that passes before the take
(assert (and (> window 0) (>= debt 0) (<= debt window) (> cost 0) (>= since 0) (>= pass 0)))
(define-fun left () Real (ite (> (- debt pass) 0) (- debt pass) 0))
(define-fun allows () Bool (<= (+ left cost) window))
(echo "unsat: the invariant holds at the beginning, whatever is owed then")
(push) (assert (not (<= 0 debt))) (check-sat) (pop)
(echo "unsat: a take keeps the invariant")
(push) (assert (<= S (+ debt since))) (assert allows)
(assert (not (and (<= (+ S cost) (+ left cost since pass)) (<= (+ left cost) window)))) (check-sat) (pop)
(echo "unsat: so no more passes than burst + rate x time")
(push) (assert (<= S (+ debt since))) (assert (not (<= S (+ window since)))) (check-sat) (pop)
; Never less: while something is refused, T = window + (now - t0) - debt only grows by what is taken.
; A bucket that owes all the time from t0 on, when it was full, has given S = debt + (now - t0).
(echo "unsat: while a bucket owes, exactly what was taken and has not come back is owed")
(push) (assert (= S (+ debt since))) (assert (<= pass debt)) (assert allows)
(assert (not (= (+ S cost) (+ left cost since pass)))) (check-sat) (pop)
(echo "unsat: what is refused then would be more than burst + rate x time")
(push) (assert (= S (+ debt since))) (assert (<= pass debt)) (assert (not allows))
(assert (not (> (+ S cost) (+ window since pass)))) (check-sat) (pop)
(echo "sat: a bucket that forgets what it owes breaks the law (a mistake that must be found)")
(push) (assert (<= S (+ debt since))) (assert (<= cost window)) (assert (not (<= (+ S cost) (+ cost since pass)))) (check-sat) (pop)
