; The quick way (ratelimit_priv_bucket_quick, _shared_quick, _take_line), word for word in 64 bits,
; and the general way in 66 bits, where nothing can overflow. Before each question stands the answer
; that z3 must give: unsat says that the claim holds for all values.
(set-logic QF_BV)
(declare-const full (_ BitVec 64))
(declare-const now (_ BitVec 64))
(declare-const cost (_ BitVec 64))   ; n x interval_ns
(declare-const window (_ BitVec 64)) ; burst x interval_ns
(define-fun wide ((x (_ BitVec 64))) (_ BitVec 66) ((_ zero_extend 2) x))
(define-fun long () (_ BitVec 64) #x4000000000000000)
; a good limit, and n from 1 to burst
(assert (bvule window long))
(assert (bvule cost window))
(assert (bvugt cost #x0000000000000000))
; the words of the code
(define-fun behind () Bool (= ((_ extract 63 63) (bvsub full now)) #b1))
(define-fun from () (_ BitVec 64) (ite behind now full))
(define-fun debt () (_ BitVec 64) (bvsub (bvadd from cost) now))
(define-fun allows () Bool (bvule debt window))
(define-fun owed () (_ BitVec 64) (bvsub debt cost))
(define-fun refuses () Bool (and (not allows) (bvule owed window)))
; the general way: what is owed now is what lies ahead, modulo 2^64
(define-fun ahead () (_ BitVec 64) (ite behind #x0000000000000000 (bvsub full now)))
(define-fun fits () Bool (bvule (bvadd (wide ahead) (wide cost)) (wide window)))

(echo "unsat: the quick way allows just when debt + cost <= window")
(push) (assert (not (= allows fits))) (check-sat) (pop)
(echo "unsat: what is stored is max(full, now) + cost: full again in debt + cost")
(push) (assert allows) (assert (not (= (wide (bvsub (bvadd from cost) now)) (bvadd (wide ahead) (wide cost))))) (check-sat) (pop)
(echo "unsat: what the quick way refuses owes no more than the window, and too much for the cost")
(push) (assert refuses) (assert (not (and (= owed ahead) (bvugt (bvadd (wide ahead) (wide cost)) (wide window))))) (check-sat) (pop)
(echo "unsat: retry_after of a refusal is debt + cost - window, and it is not 0")
(push) (assert refuses)
(assert (not (and (= (wide (bvsub (bvadd owed cost) window)) (bvsub (bvadd (wide ahead) (wide cost)) (wide window)))
                  (bvugt (bvsub (bvadd owed cost) window) #x0000000000000000)))) (check-sat) (pop)
(define-fun retry () (_ BitVec 64) (bvsub (bvadd owed cost) window))
(define-fun fits-at ((t (_ BitVec 64))) Bool
  (let ((b (bvsub full t)))
    (bvule (bvadd (wide (ite (= ((_ extract 63 63) b) #b1) #x0000000000000000 b)) (wide cost)) (wide window))))
(echo "unsat: at retry_after the take passes")
(push) (assert refuses) (assert (not (fits-at (bvadd now retry)))) (check-sat) (pop)
(echo "unsat: one ns earlier it does not")
(push) (assert refuses) (assert (fits-at (bvsub (bvadd now retry) #x0000000000000001))) (check-sat) (pop)
(echo "unsat: going back and forth makes no tokens: an earlier time allows nothing that a later one refuses")
(push) (declare-const back (_ BitVec 64)) (assert (bvule back #x2000000000000000)) (assert (bvule ahead #x2000000000000000))
(assert (not behind)) (assert (not allows)) (assert (fits-at (bvsub now back))) (check-sat) (pop)
(echo "sat: without the look at what lies behind, a rest of the past would count (a mistake that must be found)")
(push) (assert (not (= (bvule (bvsub (bvadd full cost) now) window) fits))) (check-sat) (pop)
