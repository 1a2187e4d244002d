; The quick rule (ratelimit_priv_quick), word for word in 64 bits,
; against the general way in 66 bits, where nothing can overflow. Before each question stands the
; answer that z3 must give: unsat says that the claim holds for all values.
(set-logic QF_BV)
(declare-const full (_ BitVec 64))
(declare-const now (_ BitVec 64))
; the words of the code
(define-fun behind () Bool (= ((_ extract 63 63) (bvsub full now)) #b1))
(define-fun from () (_ BitVec 64) (ite behind now full))
; the general way: what is owed now is what lies ahead, modulo 2^64
(define-fun ahead () (_ BitVec 64) (ite behind #x0000000000000000 (bvsub full now)))

(echo "unsat: full + cost - now of the quick way is what lies ahead, plus the cost, for all times")
(push) (declare-const c (_ BitVec 64))
(assert (not (= (bvsub (bvadd from c) now) (bvadd ahead c)))) (check-sat) (pop)
(echo "unsat: what lies ahead is below 2^63")
(push) (assert (bvuge ahead #x8000000000000000)) (check-sat) (pop)
(echo "sat: without the look at what lies behind, a time of the past would count (a mistake that must be found)")
(push) (assert (not (= (bvsub full now) ahead))) (check-sat) (pop)

; From here on a is what lies ahead.
(declare-const a (_ BitVec 64))
(declare-const cost (_ BitVec 64))   ; n x interval_ns
(declare-const window (_ BitVec 64)) ; burst x interval_ns
(define-fun wide ((x (_ BitVec 64))) (_ BitVec 66) ((_ zero_extend 2) x))
(assert (bvult a #x8000000000000000))
; a good limit, and n from 1 to burst
(assert (bvule window #x4000000000000000))
(assert (bvule cost window))
(assert (bvugt cost #x0000000000000000))
(define-fun debt () (_ BitVec 64) (bvadd a cost))
(define-fun allows () Bool (bvule debt window))
(define-fun refuses () Bool (and (not allows) (bvule (bvsub debt cost) window)))
(define-fun fits () Bool (bvule (bvadd (wide a) (wide cost)) (wide window)))
(define-fun retry () (_ BitVec 64) (bvsub debt window))

(echo "unsat: the quick way allows just when debt + cost <= window")
(push) (assert (not (= allows fits))) (check-sat) (pop)
(echo "unsat: what is stored lies debt + cost ahead, without overflow")
(push) (assert allows) (assert (not (= (wide debt) (bvadd (wide a) (wide cost))))) (check-sat) (pop)
(echo "unsat: what the quick way refuses is too much, and owes no more than the window")
(push) (assert refuses) (assert (or fits (bvugt a window))) (check-sat) (pop)
(echo "unsat: retry_after of a refusal is debt + cost - window")
(push) (assert refuses) (assert (not (= (wide retry) (bvsub (bvadd (wide a) (wide cost)) (wide window))))) (check-sat) (pop)
(echo "unsat: it is not 0, and not longer than the debt")
(push) (assert refuses) (assert (or (= retry #x0000000000000000) (bvugt retry a))) (check-sat) (pop)
(echo "unsat: at retry_after the take passes")
(push) (assert refuses) (assert (not (bvule (bvadd (wide (bvsub a retry)) (wide cost)) (wide window)))) (check-sat) (pop)
(echo "unsat: one ns earlier it does not")
(push) (assert refuses)
(assert (bvule (bvadd (wide (bvsub a (bvsub retry #x0000000000000001))) (wide cost)) (wide window))) (check-sat) (pop)
(echo "sat: with a debt beyond 2^63 the sum would wrap (a mistake that must be found)")
(reset)
(set-logic QF_BV)
(declare-const a (_ BitVec 64))
(declare-const cost (_ BitVec 64))
(assert (bvule cost #x4000000000000000))
(assert (bvult (bvadd a cost) a))
(check-sat)
