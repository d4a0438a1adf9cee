import sys, time, json, statistics as st, cProfile, pstats, io
sys.path[:0]=["src","benchmarks"]
import torch, adaterm
import step_time as S
from adaterm.engines.gpu import engine as G
def best(f,n=200,r=7):
    b=1e9
    for _ in range(r):
        torch.cuda.synchronize(); t=time.perf_counter()
        for i in range(n): f()
        b=min(b,(time.perf_counter()-t)/n); torch.cuda.synchronize()
    return b*1e6
def setup(shape, maker):
    ps=[torch.randn(s,device="cuda").requires_grad_() for s in S.SHAPES[shape]]
    grads=[[torch.randn_like(p) for p in ps] for _ in range(2)]
    o=maker(ps); i=[0]
    def give():
        i[0]^=1
        for p,g in zip(ps,grads[i[0]]): p.grad=g
    for _ in range(5): give(); o.step()
    return o,give,ps
if "host" in sys.argv:
    for shape in ("mlp","resnet18","gpt2"):
        for name,mk in (("adam",lambda p: torch.optim.Adam(p,fused=True)),("ours",lambda p: adaterm.AdaTerm(p,fused=True))):
            o,give,ps=setup(shape,mk)
            ts=[]
            for _ in range(300):
                give(); torch.cuda.synchronize(); t=time.perf_counter(); o.step(); h=time.perf_counter(); torch.cuda.synchronize(); e=time.perf_counter()
                ts.append((h-t,e-t))
            print(shape,name,"host %.1f us, wall %.1f us"%tuple(1e6*st.median(c) for c in zip(*ts)))
        stp=o._memory.steps[0]; e=stp.engines[0]; b=stp.blocks[0]; g=[p.grad for p in ps]
        r,op=o._read_options(0)
        give(); 
        print(shape,"fits",best(lambda: stp.fits(r,op,g),50), "recall",best(o._recall_steps,50))
        b.grads=g
        tb=e._host_table
        print(" update same",best(lambda: tb.update(g),50))
        def changed(): tb.forget(); e._update_table(g)
        print(" update_table changed",best(changed,50))
        host=torch.frombuffer(tb.values,dtype=torch.int64)
        print(" pin",best(lambda: host.pin_memory(),50)," copy",end=" "); ph=host.pin_memory(); print(best(lambda: e._table.copy_(ph,non_blocking=True),50))
        print(" launch_with",best(lambda: e._launch_with(G._OnDevice(None,None,None),("gauge","move")),50), "launch", best(lambda: e._launch("gauge","move"),50))
        print(" inc version",best(lambda: torch.autograd.graph.increment_version(ps),50), "captur",best(torch.cuda.is_current_stream_capturing,50),"curdev",best(torch.cuda.current_device,50),"health",best(o._accelerator_graph_capture_health_check,50))
        if shape=="mlp":
            pr=cProfile.Profile(); pr.enable()
            for _ in range(500): give(); o.step()
            pr.disable(); torch.cuda.synchronize(); s=io.StringIO(); pstats.Stats(pr,stream=s).sort_stats("tottime").print_stats(25); print("\n".join(s.getvalue().split("\n")[4:40]))
if "graph" in sys.argv:
    V={"base":{}, "g none":{"gauge":{"num_warps":16}}, "m64":{"move":{"num_warps":16,"maxnreg":64}},"m8":{"move":{"num_warps":8}},"m8 r128":{"move":{"num_warps":8,"maxnreg":128}},"g8":{"gauge":{"num_warps":8}},"g8 r64":{"gauge":{"num_warps":8,"maxnreg":64}},"g8 m8":{"gauge":{"num_warps":8},"move":{"num_warps":8}}, "g8r64 m8":{"gauge":{"num_warps":8,"maxnreg":64},"move":{"num_warps":8}}}
    base=dict(G._LAUNCH_OPTIONS)
    for shape in ("resnet18","gpt2","llama","one"):
        ps=[torch.randn(s,device="cuda") for s in S.SHAPES[shape]]
        for p in ps: p.grad=torch.randn_like(p)
        ref=None
        for name,v in {"adam":None,**V}.items():
            if v is not None:
                G._LAUNCH_OPTIONS.clear(); G._LAUNCH_OPTIONS.update(base|v)
            o=torch.optim.Adam(ps,fused=True,capturable=True) if v is None else adaterm.AdaTerm(ps,fused=True,capturable=True)
            o.step(); t=S.replayed(o.step); ref=ref or t
            print(f"{shape:9} {name:9} {t*1e3:.4f} ms {t/ref:.3f}",flush=True)
            del o; torch.cuda.empty_cache()
