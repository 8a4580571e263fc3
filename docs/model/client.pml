/* client.pml - clients' requests (sections 2, 3, W7, W8 of protocol.md), for Spin.   ./check-client.sh runs everything.
 *
 * Without -DM_... the model is the CORRECTED protocol (S45-S55 of protocol-rationale.md). Each -DM_x removes one rule or puts the former
 * wording back; check-client.sh says what Spin must find then. Features are switched on one by one: WITHDRAW, TRANSFER, COOL, BREAK.
 *
 * Time as in authority.pml: one tick, countdown timers, nothing is urgent; a validity and the wait against it are exactly equal.
 * The authority is the atomic table of delegation.pml (see there why that is enough), for one name: a leader change loses the
 * deadlines, the waiters and all else that is in the leader's memory, and the deposed leader, with the lease as it was, may renew
 * for L more; a takeover loses the table, opens reclaims and begins a grace; F1-F3 in one step carry the lease over.
 *
 * Two clients. Each has two places on the wire; a place holds a request on its way or a positive answer on its way back. What is
 * on the wire may be lost, or arrive at any later time (it outlives its sender). A copy is a second place with the same request.
 * A refusal arrives at once or is lost. Attempt ids: two per client, drawn again only when nothing refers to them any more.
 * The leader's memory of withdrawn attempts is bounded and may be gone at any time: so it is not there at all.
 */
#ifndef L
#define L    1                     /* authority lease */
#endif
#ifndef TTL
#define TTL  2
#endif
#ifndef FD
#define FD   1                     /* the first deadline of a grant that waited: min(TTL, 5 s) */
#endif
#ifndef CD
#define CD   2                     /* cooldown */
#endif
#ifndef HALF
#define HALF ((TTL+1)/2)
#endif
#ifndef EMAX
#define EMAX 1                     /* epochs: 1 raft, 2 fallback, 3 raft again, 4 fallback */
#endif
#ifndef LEADERS
#define LEADERS 255                /* leader changes; 255: without limit */
#endif
#ifndef GRANTS
#define GRANTS 3                   /* grants in all (tokens) */
#endif
#ifndef ATT1
#define ATT1 2                     /* attempts of client 1 */
#endif
#ifndef ATT2
#define ATT2 1                     /* attempts of client 2 */
#endif
#ifdef BFS
#define hidden
#endif
hidden byte x, y, z; hidden int u;

#ifndef ONLY
#define ONLY 0
#endif
#if ONLY == 0 || ONLY == 2
#define I2(p) assert(p);
#else
#define I2(p)
#endif
#if ONLY == 0 || ONLY == 3
#define I3(p) assert(p);
#else
#define I3(p)
#endif
#if ONLY == 0 || ONLY == 4
#define I4(p) assert(p);
#else
#define I4(p)
#endif
#if ONLY == 0 || ONLY == 5
#define I5(p) assert(p);
#else
#define I5(p)
#endif
#if ONLY == 0 || ONLY == 6         /* a cooling name is free when its cooldown is over, not before, and no request prolongs it */
#define I6(p) assert(p);
#else
#define I6(p)
#endif
#if ONLY == 0 || ONLY == 7         /* an orphan lives for TTL at most (with a leader change or a new authority: anew) */
#define I7(p) assert(p);
#else
#define I7(p)
#endif
#define DEC(v) if :: v > 0 -> v-- :: else fi

/* the rules that a mutation removes */
#ifdef M_HALF                      /* S45: former wording: a grant is confirmed only if less than half of the TTL is left */
#define MUSTCONFIRM(c,f) (fa[c] < HALF)
#elif defined(M_NOCONFIRM)
#define MUSTCONFIRM(c,f) 0
#else
#define MUSTCONFIRM(c,f) ((f) || fa[c] < HALF)
#endif
#ifdef M_FLAG                      /* S45: only the first answer says that the request waited, not that to a repeat */
#define WAITED 0
#else
#define WAITED unc
#endif
#ifdef M_UNCONF                    /* S46: "a lease that is still valid" read as "counted from its first sending" */
#define MAYRECLAIM(c) ((st[c] == HOLD && bel[c]) || (st[c] == CONF && fa[c]))
#else
#define MAYRECLAIM(c) (st[c] == HOLD && bel[c])
#endif
#ifdef M_SENT                      /* S40: counted from the last sending of the attempt */
#define AGAIN(c) fa[c] = TTL
#else
#define AGAIN(c) skip
#endif
#ifdef M_BYHOLDER                  /* S21: a repeat is recognized by its session */
#define MATCH(c,a) (th == c && !co)
#elif defined(M_COUNTER)           /* S52: two processes with one session id, attempt ids from a counter */
#define MATCH(c,a) (th && ta == a)
#else
#define MATCH(c,a) (th == c && ta == a)
#endif
#ifdef M_W4
#define W4 TTL
#else
#define W4 (L+TTL)
#endif
#ifdef M_XFGRACE                   /* S49: a transfer is not taken for a fresh grant */
#define MAYXFER SERVES
#else
#define MAYXFER MAYGRANT
#endif
#ifdef M_BREAKANY                  /* S51: Break names the name only */
#define BREAKS (th == 1 || th == 2)
#else
#define BREAKS (th && tt == bk)
#endif
#ifdef M_BYWORD                    /* S50: the cooling lease stays as it was but for its TTL: "one that nobody renews" */
#define COOLHOLDER c
#define COOLATTEMPT ta
#else
#define COOLHOLDER 3
#define COOLATTEMPT 0
#endif
#if defined(M_BYWORD) || defined(M_COOLTOKEN)      /* S50: the cooling lease keeps the token */
#define COOLTOKEN tt
#else
#define COOLTOKEN newtok
#endif

/* the table (of the leader, or the shard), and the leader's memory */
#define RAFT 0
#define FALL 1
bit  mode; byte ep = 1, ctr = 1, gb = GRANTS;
bit  gd = 1, closed; byte gr;      /* fallback */
byte th, tt, ta;                   /* holder (0 nobody's, 3 cooling), token, attempt */
bit  co, br;                       /* cooling, broken */
byte ddl; bit unc;                 /* leader's memory: deadline; the grant waited and is not confirmed yet */
byte wc[2], wa[2];                 /* ... the FIFO: client, attempt */
byte xp;                           /* ... the token of an expiry that is decided, not yet applied */
byte ow, oh, ot;                   /* deposed leader: window left (at 1 it is just ending), its table's lease */
byte lc = LEADERS;
byte anew;                         /* the greatest token granted */
#define newtok (ep*8 + ctr)
#define SERVES   1
#define MAYGRANT (mode == RAFT || gd)

/* the clients */
#define IDLE 0
#define ASK  1                     /* its attempt's answer is not known */
#define CONF 2                     /* granted, still to be confirmed */
#define HOLD 3
#define GIVE 4                     /* M_GOON: has sent a transfer, waits for the refusal */
byte st[3], at[3], fa[3];          /* attempt; what is left of TTL since its first sending */
byte bel[3], tk[3];                /* ticks of belief left; token */
byte ab[3];                        /* attempts made */
byte maxtok, maxwho;
byte og;                           /* the deadline as last set by the authority, or by a client that cares */
#ifdef BREAK
byte bk, bt, bb = 1;               /* Break on its way: token; the token that it was meant for */
#define BROKEN(t) (bt == t)
#else
#define BROKEN(t) 0
#endif

/* the wire */
#define ACQ 1                      /* attempt */
#define WDR 2                      /* attempt */
#define REN 3                      /* token */
#define REL 4                      /* token, cooldown or not */
#define XFR 5                      /* token; to the other client's waiter */
#define RCL 6                      /* token, epoch */
#define GRA 7                      /* answer "granted": attempt, token, waited */
#define YES 8                      /* answer "renewed": token */
#define REF 9                      /* M_GOON: answer "no such waiter": token */
byte k[4], p[4], q[4], g[4];       /* kind, see above; g: age (TTL - ticks since it was sent) or flag */
#define S0(c) (2*(c)-2)
#define S1(c) (2*(c)-1)
#define MAXATT(c) (c == 1 -> ATT1 : ATT2)
#define ROOM(c) (k[S0(c)] == 0 || k[S1(c)] == 0)
#define REFERS(s,a) ((k[s] == ACQ || k[s] == WDR || k[s] == GRA) && p[s] == a)
#define WAITS(i,c,a) (wc[i] == c && wa[i] == a)
#ifdef M_COUNTER
#define UNUSED(c,a) (a == 1)
#else
#define UNUSED(c,a) (!REFERS(S0(c),a) && !REFERS(S1(c),a) && !(th == c && ta == a) && !WAITS(0,c,a) && !WAITS(1,c,a))
#endif
#define INFLIGHT(s,t) ((k[s] == REN || k[s] == RCL || k[s] == YES) && p[s] == t)
#define CARES(c) ((st[c] >= CONF && tk[c] == tt) || (st[c] == ASK && at[c] == ta) || INFLIGHT(S0(c),tt) || INFLIGHT(S1(c),tt))

#if WITNESS == 1                   /* a grant that waited longer than its TTL is usable */
#define GOOD (bel[2] == TTL && tk[2] == 10 && wl)
#elif WITNESS == 2                 /* a transfer; the heir learns of it from a new leader */
#define GOOD (bel[2] && tk[2] == 10 && xf == 2)
#elif WITNESS == 3                 /* a late Acquire after its Withdraw: an orphan */
#define GOOD (th == 1 && st[1] == IDLE && k[0] == 0 && k[1] == 0 && wd == 2 && ddl)
#elif WITNESS == 4                 /* a cooling name outlives a leader change and then goes to the waiter */
#define GOOD (bel[2] && wcool == 2)
#elif WITNESS == 5                 /* a broken lease: the next one has it after its deadline */
#define GOOD (bel[2] && bt == 9 && tk[2] == 10)
#elif WITNESS == 6                 /* lease and token kept: raft, fallback, raft */
#define GOOD (mode == RAFT && ep == 3 && bel[1] && tk[1] == 9 && th == 1 && ddl == TTL)
#elif WITNESS == 7                 /* a repeat gets the token of the first copy from a new leader */
#define GOOD (bel[1] && tk[1] == 9 && rp == 2)
#endif
#ifdef WITNESS
byte xf, wd, wcool, rp, wl;            /* ghosts */
#define G(s) s
#else
#define G(s) skip
#endif

#define KEY(s) (((k[s]*64 + p[s])*64 + q[s])*8 + g[s])
#define SWAP(v,s,t) u = v[s]; v[s] = v[t]; v[t] = u
inline norm(C_) {                  /* the order of a client's two places means nothing */
  if :: KEY(S0(C_)) < KEY(S1(C_)) ->
       SWAP(k,S0(C_),S1(C_)); SWAP(p,S0(C_),S1(C_)); SWAP(q,S0(C_),S1(C_)); SWAP(g,S0(C_),S1(C_)); u = 0
     :: else fi
}
inline wipe(S_) { k[S_] = 0; p[S_] = 0; q[S_] = 0; g[S_] = 0; norm(S_/2+1) }
inline send(C_, K_, P_, Q_, G_) {
  y = (k[S0(C_)] == 0 -> S0(C_) : S1(C_));
  k[y] = K_; p[y] = P_; q[y] = Q_; g[y] = G_; norm(C_)
}
inline nolease() { th = 0; tt = 0; ta = 0; co = 0; br = 0; ddl = 0; unc = 0; og = 0 }
inline noq() { wc[0] = 0; wa[0] = 0; wc[1] = 0; wa[1] = 0; unc = 0; xp = 0 }
inline grant(C_, A_, D_, U_) {
  gb--; th = C_; tt = newtok; ctr++; ta = A_; co = 0; br = 0; ddl = D_; unc = U_; anew = tt; og = D_;
  closed = (mode == FALL)
}
inline believe(C_, W_) {
  if :: W_ > bel[C_] -> bel[C_] = W_ :: else fi;
  st[C_] = HOLD;
  I3(tk[C_] > maxtok || (tk[C_] == maxtok && C_ == maxwho))
  maxtok = tk[C_]; maxwho = C_;
  I2(!(bel[1] && bel[2]))
}
inline idle(C_) { st[C_] = IDLE; at[C_] = 0; fa[C_] = 0; bel[C_] = 0; tk[C_] = 0 }
inline dequeue(I_) {
  if :: I_ == 0 -> wc[0] = wc[1]; wa[0] = wa[1] :: else fi;
  wc[1] = 0; wa[1] = 0
}
/* the name goes to the waiter in place I_: the answer is pushed, or lost */
inline giveto(I_) {
  x = wc[I_]; z = wa[I_]; dequeue(I_);
  grant(x, z, (mode == RAFT -> FD : TTL), 1);
  if :: ROOM(x) -> send(x, GRA, z, tt, 1) :: else fi
}

proctype table() {
end: do
  /* a waiter is granted the name */
  :: d_step { MAYGRANT && th == 0 && wc[0] && gb -> giveto(0) }
  /* expiry: decided, applied */
#ifdef COOL
  :: d_step { mode == RAFT && th && ddl == 0 && xp == 0 -> xp = tt }
  :: d_step { xp ->
       if :: th && tt == xp ->
            I6(!(co && ddl))
            G(wcool = (wcool == 1 && co -> 2 : wcool));
            nolease()
          :: else fi; xp = 0 }
  :: d_step { mode == FALL && th && ddl == 0 -> nolease() }
#else                              /* (but for a cooldown, whatever comes between has ended that token's lease anyway) */
  :: d_step { th && ddl == 0 -> nolease() }
#endif
  /* a waiter's stream ends */
  :: d_step { wc[0] -> dequeue(0) }
  :: d_step { wc[1] -> dequeue(1) }
  /* leader change */
  :: d_step { mode == RAFT && ow <= 1 && lc -> if :: lc < 255 -> lc-- :: else fi;
       ow = L+1; oh = (co -> 0 : th); ot = (co -> 0 : tt); ddl = (th -> (co -> L+CD : W4) : 0); noq(); og = ddl;
       G(rp = (rp == 0 && th == 1 && st[1] == ASK -> 1 : rp)); G(wcool = (co -> 1 : wcool)); G(xf = (xf == 1 -> 2 : xf)) }
  /* takeover; the end of the grace; failback */
  :: d_step { mode == RAFT && ow <= 1 && ep < EMAX ->
       mode = FALL; ep++; ctr = 1; gd = 0; gr = TTL; closed = 0; nolease(); noq(); ow = 0; oh = 0; ot = 0 }
  :: d_step { mode == FALL && !gd && gr == 0 -> gd = 1 }
  :: d_step { mode == FALL && gd && ep < EMAX -> mode = RAFT; ep++; ctr = 1; closed = 0; ddl = (th -> (co -> CD : TTL) : 0); noq(); og = ddl }
#ifdef HANDOVER                    /* section 8 */
  :: d_step { mode == RAFT && ow <= 1 && ep < EMAX ->
       mode = FALL; ep++; ctr = 1; gd = 1; gr = 0; closed = 0; ddl = (th -> (co -> CD : TTL) : 0); noq(); og = ddl; ow = 0; oh = 0; ot = 0 }
#endif
#ifdef BREAK
  :: d_step { bb && (th == 1 || th == 2) -> bb--; bk = tt; bt = tt }
  :: d_step { bk && BREAKS -> br = 1; bk = 0 }
  :: d_step { bk -> bk = 0 }
#endif
  od
}

/* what is in place s of the wire arrives, or is lost */
proctype wire(byte s; byte c) {
end: do
  :: d_step { k[s] -> wipe(s) }
  /* Acquire: repeated | granted at once | queued. Refusals, and a repeat of one that waits, leave no trace. */
  :: d_step { k[s] == ACQ && MATCH(c,p[s]) ->
#ifdef M_REPEATMOVES
       if :: ddl < TTL -> ddl = TTL :: else fi;
#endif
       I6(!co)
       G(rp = (rp == 1 && c == 1 -> 2 : rp));
       k[s] = GRA; q[s] = tt; g[s] = WAITED; norm(c) }
  :: d_step { k[s] == ACQ && MAYGRANT && th == 0 && wc[0] == 0 && gb -> grant(c, p[s], TTL, 0); k[s] = GRA; q[s] = tt; g[s] = 0; norm(c);
       G(wd = (wd == 1 && c == 1 && at[1] == 0 -> 2 : wd)) }
  :: d_step { k[s] == ACQ && (th || wc[0]) && !MATCH(c,p[s]) && wc[1] == 0 && !WAITS(0,c,p[s]) ->
       y = (wc[0] -> 1 : 0); wc[y] = c; wa[y] = p[s]; wipe(s) }
#ifdef WITHDRAW
  :: d_step { k[s] == WDR ->
       if :: WAITS(0,c,p[s]) -> dequeue(0)
          :: else -> if :: WAITS(1,c,p[s]) -> dequeue(1) :: else fi
       fi;
       if :: th == c && ta == p[s] -> I6(!co) nolease() :: else fi;
       G(wd = (wd == 0 && c == 1 -> 1 : wd));
       wipe(s) }
#endif
  /* Renew: the serving authority, or the deposed leader */
  :: d_step { k[s] == REN && th == c && tt == p[s] && !br && (mode == FALL || (ddl && xp != tt)) ->
       I6(!co)
       if :: ddl < TTL -> ddl = TTL :: else fi; unc = 0; og = ddl; k[s] = YES; norm(c) }
  :: d_step { k[s] == REN && ow && oh == c && ot == p[s] -> k[s] = YES; norm(c) }
  :: d_step { k[s] == REN && (mode == RAFT || gd) && (th != c || tt != p[s] || br || (mode == RAFT && (ddl == 0 || xp == tt))) ->
       I4(!(bel[c] && tk[c] == p[s]) || BROKEN(p[s]))
       if :: (st[c] == HOLD || st[c] == CONF) && tk[c] == p[s] -> idle(c) :: else fi; wipe(s) }
  /* Reclaim */
  :: d_step { k[s] == RCL && mode == FALL && q[s] == ep && !closed && p[s] < ep*8 && !br &&
              (th == 0 || tt < p[s] || (th == c && tt == p[s])) ->
       I5(!(th == 0 && p[s] < anew)) I6(!co)
       th = c; if :: tt != p[s] -> ta = 0 :: else fi; tt = p[s]; ddl = TTL; unc = 0; og = ddl; k[s] = YES; q[s] = 0; norm(c) }
  /* Release */
  :: d_step { k[s] == REL && th == c && tt == p[s] ->
       I6(!co)
       if :: q[s] -> th = COOLHOLDER; ta = COOLATTEMPT; tt = COOLTOKEN; ctr++; ddl = CD; co = 1; br = 0; unc = 0; og = ddl
          :: else -> nolease()
       fi; wipe(s) }
#ifdef TRANSFER
  :: d_step { k[s] == XFR && th == c && tt == p[s] && MAYXFER && (wc[0] == 3-c || wc[1] == 3-c) && gb ->
       wipe(s);
       if :: wc[0] == 3-c -> giveto(0) :: else -> giveto(1) fi;
#ifdef M_XFGRACE
       closed = (gd && mode == FALL);
#endif
       G(xf = (xf == 0 -> 1 : xf)) }
#ifndef M_GOON
  :: d_step { k[s] == XFR && th == c && tt == p[s] && !(MAYXFER && (wc[0] == 3-c || wc[1] == 3-c)) -> nolease(); wipe(s) }
#else
  :: d_step { k[s] == XFR && th == c && tt == p[s] && wc[0] != 3-c && wc[1] != 3-c ->
#ifdef DUP                         /* the network has delivered a copy of the request, another one is still on its way */
       if :: st[c] == GIVE && tk[c] == p[s] -> believe(c, fa[c]); fa[c] = 0 :: else fi
#else
       k[s] = REF; norm(c)
#endif
     }
  :: d_step { k[s] == XFR && ow && wc[0] != 3-c && wc[1] != 3-c -> k[s] = REF; norm(c) }   /* the deposed leader, which has no waiters */
  :: d_step { k[s] == REF -> if :: st[c] == GIVE && tk[c] == p[s] -> believe(c, fa[c]); fa[c] = 0 :: else fi; wipe(s) }
#endif
#endif
  /* answers */
  :: d_step { k[s] == GRA ->
       if :: st[c] == ASK && at[c] == p[s] ->
            tk[c] = q[s];
            G(wl = (c == 2 && g[s] && fa[c] == 0));
            if :: MUSTCONFIRM(c, g[s]) -> st[c] = CONF
               :: else -> x = fa[c]; fa[c] = 0;
#ifdef M_NOCONFIRM
                          x = TTL;
#endif
                          believe(c, x)
            fi
          :: else fi; wipe(s) }
  :: d_step { k[s] == YES ->
       if :: st[c] == HOLD && bel[c] && tk[c] == p[s] -> believe(c, g[s])
          :: else ->
            if :: st[c] == CONF && tk[c] == p[s] && g[s] -> fa[c] = 0; believe(c, g[s]) :: else fi
       fi; wipe(s) }
  od
}

proctype client(byte c) {
end: do
  /* (The clients are alike: the first attempt is client 1's.) */
  :: d_step { st[c] == IDLE && ab[c] < MAXATT(c) && UNUSED(c,1) && ROOM(c) && (c == 1 || ab[1]) ->
       ab[c]++; st[c] = ASK; at[c] = 1; fa[c] = TTL; send(c, ACQ, 1, 0, 0) }
  :: d_step { st[c] == IDLE && ab[c] < MAXATT(c) && !UNUSED(c,1) && UNUSED(c,2) && ROOM(c) && (c == 1 || ab[1]) ->
       ab[c]++; st[c] = ASK; at[c] = 2; fa[c] = TTL; send(c, ACQ, 2, 0, 0) }
  :: d_step { st[c] == ASK && ROOM(c) -> AGAIN(c); send(c, ACQ, at[c], 0, 0) }
  /* given up: withdrawn, or not (crash) */
#ifdef WITHDRAW
  :: d_step { (st[c] == ASK || st[c] == CONF) && ROOM(c) -> send(c, WDR, at[c], 0, 0);
#ifndef M_WITHDRAWN                /* S47: an answer that comes after all counts */
       idle(c)
#endif
     }
#endif
  :: d_step { st[c] == ASK || st[c] == CONF -> idle(c) }
  /* renewed, confirmed */
  :: d_step { (st[c] == HOLD || st[c] == CONF) && ROOM(c) -> send(c, REN, tk[c], 0, TTL) }
  /* reclaimed */
  :: d_step { mode == FALL && MAYRECLAIM(c) && tk[c] < ep*8 && ROOM(c) -> send(c, RCL, tk[c], ep, TTL) }
  /* released: one copy or two */
  :: d_step { st[c] == HOLD && ROOM(c) -> send(c, REL, tk[c], 0, 0); if :: ROOM(c) -> send(c, REL, tk[c], 0, 0) :: else fi;
#if defined(M_AGAIN)               /* S47: ... and the same attempt is used again */
       x = at[c]; bel[c] = 0; tk[c] = 0; st[c] = ASK; fa[c] = 0
#elif !defined(M_RELKEEP)          /* S13: ... and used (renewed, reclaimed) until the answer is there */
       idle(c)
#endif
     }
#ifdef COOL
  :: d_step { st[c] == HOLD && ROOM(c) -> send(c, REL, tk[c], 1, 0); if :: ROOM(c) -> send(c, REL, tk[c], 1, 0) :: else fi; idle(c) }
#endif
#ifdef TRANSFER
#ifndef M_GOON
  :: d_step { st[c] == HOLD && ROOM(c) -> send(c, XFR, tk[c], 0, 0); if :: ROOM(c) -> send(c, XFR, tk[c], 0, 0) :: else fi;
#ifndef M_XFKEEP                   /* W8: ... and used until the answer is there */
       idle(c)
#endif
     }
#else                              /* former wording: one copy; the giver goes on after "no such waiter" */
  :: d_step { st[c] == HOLD && ROOM(c) -> send(c, XFR, tk[c], 0, 0);
#ifdef M_TWO
       if :: ROOM(c) -> send(c, XFR, tk[c], 0, 0) :: else fi;
#endif
       st[c] = GIVE; fa[c] = bel[c]; bel[c] = 0 }
#endif
#endif
  od
}

inline age(C_) {
  DEC(fa[C_]);
  if :: bel[C_] == 1 -> idle(C_) :: bel[C_] > 1 -> bel[C_]-- :: else fi;
#ifdef M_GOON
  if :: st[C_] == GIVE && fa[C_] == 0 -> idle(C_) :: else fi
#endif
}
inline old(S_) {
  if :: k[S_] == REN || k[S_] == RCL || k[S_] == YES -> DEC(g[S_]);
       if :: k[S_] == YES && g[S_] == 0 -> wipe(S_) :: else fi
     :: else fi
}
proctype clock() {
end: do
  :: d_step {
#ifdef WITNESS
       assert(!(GOOD));
#endif
       if :: (th == 1 || th == 2) && ddl && !CARES(th) -> I7(ddl <= og) :: else fi;
       DEC(ddl); og = ddl; DEC(gr); DEC(ow);
       if :: ow == 0 -> oh = 0; ot = 0 :: else fi;
       age(1); age(2); old(1); old(0); old(3); old(2); norm(1); norm(2) }
  od
}
init { atomic { run table(); run wire(0,1); run wire(1,1); run wire(2,2); run wire(3,2); run client(1); run client(2); run clock() } }
