"""The style sheet of report.html: one column of text, one accent (the verdict's), light and dark, screen and paper."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fdfdfb;--ink:#1c1c1f;--soft:#5a5b62;--rule:#e3e2dd;--tint:#f4f3ef;
--pass:#14663b;--fail:#b3221a;--open:#7a5400;--wash:#eef5ef;--serif:"Iowan Old Style","Palatino Linotype",Palatino,
"Book Antiqua",P052,"Source Serif 4",Charter,Georgia,"DejaVu Serif",serif;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Inter,"Noto Sans","Liberation Sans",sans-serif;
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
body.pass{--verdict:var(--pass)}
body.fail{--verdict:var(--fail);--wash:#fbeeec}
body.open{--verdict:var(--open);--wash:#f9f3e3}
@media (prefers-color-scheme:dark){
:root{--paper:#131416;--ink:#ecebe6;--soft:#a6a7ae;--rule:#2d2f34;--tint:#1c1e21;--pass:#79d5a4;--fail:#ff8d82;
--open:#e6c468;--wash:#14211a}
body.fail{--wash:#2a1715}
body.open{--wash:#252011}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.6 var(--sans);
font-variant-numeric:tabular-nums lining-nums;overflow-wrap:break-word}
header>div,main,footer{max-width:62rem;margin:0 auto;padding:0 1.5rem}
header{background:var(--wash);border-bottom:1px solid var(--rule)}
header>div{padding-top:3.5rem;padding-bottom:2.5rem}
.eyebrow{margin:0;color:var(--soft);font-size:.8125rem;letter-spacing:.06em}
h1{display:flex;align-items:center;gap:.22em;margin:.12em 0 .1em;color:var(--verdict);
font:500 clamp(3.75rem,13vw,7.5rem)/1 var(--serif);letter-spacing:-.03em}
h1 svg{flex:none;width:.52em;height:.52em;fill:none;stroke:currentColor;stroke-width:4;stroke-linecap:round;
stroke-linejoin:round}
.lead{max-width:38em;margin:1.1rem 0 0;font:1.3125rem/1.45 var(--serif);text-wrap:pretty}
.caution{max-width:44em;margin:1rem 0 0;padding-left:.9rem;border-left:3px solid var(--open)}
.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:1.5rem 2rem;margin:2.25rem 0 0}
.key div{display:flex;flex-direction:column-reverse;justify-content:flex-end;padding-top:.75rem;
border-top:1px solid color-mix(in srgb,var(--ink) 22%,transparent)}
.key dd{margin:0;font:500 2rem/1.1 var(--serif);letter-spacing:-.01em}
.key dt{margin-top:.3rem;color:var(--soft);font-size:.875rem;line-height:1.4;max-width:16em}
section{padding:2.75rem 0 0}
h2{margin:0 0 .6rem;font:500 1.75rem/1.2 var(--serif);letter-spacing:-.012em}
h3{margin:1.75rem 0 .4rem;font-size:1rem;line-height:1.4;font-weight:600}
p{margin:.5rem 0;text-wrap:pretty}
section>p{max-width:44em}
.note,small{color:var(--soft);font-size:.875rem;line-height:1.5}
code{font:.875em/1 var(--mono)}
b{font-weight:600}
.finding h3{margin-top:1.25rem;color:var(--soft);font-weight:500;font-size:.875rem}
.path{display:flex;flex-wrap:wrap;gap:.1em .55em;margin:0;padding:0;list-style:none;
font:1.5rem/1.35 var(--serif)}
.path li+li::before{content:"›";margin-right:.5em;color:var(--soft)}
.path li:last-child{color:var(--verdict)}
.causes,.complaints{margin:0;padding:0;list-style:none}
.causes li+li{margin-top:1rem}
.cause{max-width:34em;margin:0;font:1.5rem/1.35 var(--serif);text-wrap:pretty}
.causes code{margin-right:.4em}
.complaints li{padding:.7rem 0;border-bottom:1px solid var(--rule)}
.complaints b{margin-right:.5em}
figure{margin:1rem 0 0}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;margin:.5rem 0 .75rem;padding:0;list-style:none;
color:var(--soft);font-size:.875rem}
.legend li{display:flex;align-items:center;gap:.5em}
.legend svg{flex:none;width:28px;height:12px;overflow:visible}
.plot{display:flex;gap:.6rem}
.axis{position:relative;flex:none;width:2.4rem;height:20rem;color:var(--soft);font-size:.8125rem}
.axis span{position:absolute;right:0;transform:translateY(-50%)}
.panels{display:flex;flex:1;gap:.75rem;min-width:0}
.panel{flex:1 1 0;min-width:3.75rem}
.panel svg{display:block;width:100%;height:20rem;overflow:visible}
.low .axis,.low .panel svg{height:13rem}
.panel p{margin:.5rem 0 0;font-size:.8125rem;line-height:1.35}
.panel p span{color:var(--soft);white-space:nowrap}
.ticks{position:relative;height:1.6rem;margin-top:.35rem;color:var(--soft);font-size:.8125rem}
.ticks span{position:absolute;transform:translateX(-50%)}
svg path{fill:none;vector-effect:non-scaling-stroke}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .floor{fill:var(--ink);fill-opacity:.13}
svg .error{stroke:var(--ink);stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
svg .limit{stroke:var(--soft);stroke-width:1.25;stroke-dasharray:3 3}
svg .stem{stroke:var(--ink);stroke-width:1.5}
svg .dot{stroke:var(--ink);stroke-width:7;stroke-linecap:round}
svg .bad{stroke:var(--fail)}
svg .ring{stroke:var(--ink);stroke-width:10;stroke-linecap:round}
svg .hole{stroke:var(--paper);stroke-width:6;stroke-linecap:round}
svg .hover{fill:var(--ink);fill-opacity:0}
svg .hover:hover{fill-opacity:.1}
table{width:100%;border-collapse:collapse;text-align:left}
th{font-weight:500}
thead th{padding:.4rem .75rem .4rem 0;color:var(--soft);font-size:.875rem;vertical-align:bottom}
thead th small{display:block;font-weight:400}
tbody tr>*{padding:.55rem .75rem .55rem 0;vertical-align:baseline}
.number{text-align:right}
.number:last-child,td:last-child{padding-right:0}
.checks tbody{border-top:1px solid var(--rule)}
.checks tbody tr:first-child>*{padding-top:.8rem;padding-bottom:0}
.checks tbody th{white-space:nowrap;font-weight:600}
.checks .said{padding:.15rem 0 .85rem;color:var(--soft);font-size:.9375rem;line-height:1.5}
.checks .fail .said,.checks .open .said{color:inherit}
.skipped{color:var(--soft)}
.badge{white-space:nowrap}
tbody.pass .badge,tr.pass .badge{color:var(--pass)}
tbody.fail .badge,tr.fail .badge{color:var(--fail);font-weight:600}
tbody.open .badge{color:var(--open);font-weight:600}
.measure{display:inline-flex;flex-direction:row-reverse;align-items:center;gap:.7rem}
.bar{position:relative;display:block;width:8.5rem;height:.5rem;
background:var(--tint);box-shadow:inset 0 0 0 1px var(--rule);border-radius:2px}
.bar i{display:block;height:100%;background:var(--ink);border-radius:2px}
.bar::after{content:"";position:absolute;top:-.2rem;bottom:-.2rem;left:70%;width:2px;margin-left:-1px;
background:var(--soft);box-shadow:0 0 0 1px var(--paper)}
.over .bar i{background:var(--fail)}
.over .value{color:var(--fail);font-weight:600}
.value{white-space:nowrap}
.value small{font-weight:400}
.plain{font-size:.9375rem}
.plain tbody tr{border-top:1px solid var(--rule)}
.plain td,.plain th{white-space:nowrap}
.plain .listed{padding-left:3.2rem;white-space:normal}
.scroll{overflow-x:auto;padding:.25rem 0}
.scroll:focus-visible{outline:2px solid var(--soft);outline-offset:2px}
.map{width:auto;border-collapse:separate;border-spacing:2px;font-size:.8125rem;line-height:1.2}
.map tr>*{padding:0}
.map thead th{min-width:1.35rem;padding:0 0 .15rem;text-align:center;font-size:.8125rem}
.map tbody th{position:sticky;z-index:1;left:0;padding:0 .75rem 0 0;background:var(--paper);font-weight:400;
vertical-align:middle;white-space:nowrap}
.cell{width:1.35rem;min-width:1.35rem;height:1.2rem;border-radius:2px;background:var(--tint)}
.map .cell:last-child{padding:0}
.roomy .cell{width:3.25rem;min-width:3.25rem}
.legend .cell{display:inline-block;width:1.1rem;min-width:0;height:.85rem}
.in{background:color-mix(in srgb,var(--ink) 9%,var(--paper))}
.o1{background:color-mix(in srgb,var(--fail) 32%,var(--paper))}
.o2{background:color-mix(in srgb,var(--fail) 52%,var(--paper))}
.o3{background:color-mix(in srgb,var(--fail) 76%,var(--paper))}
.o4{background:var(--fail)}
.absent{background:repeating-linear-gradient(135deg,var(--rule) 0 2px,transparent 2px 5px)}
.first{box-shadow:0 0 0 2px var(--paper),0 0 0 4px var(--ink);position:relative}
.legend .first{background:none;box-shadow:inset 0 0 0 2px var(--ink)}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(24rem,1fr));gap:0 3rem;margin:0}
.facts div{display:grid;grid-template-columns:7rem 1fr;padding:.55rem 0;border-top:1px solid var(--rule)}
.facts dt{color:var(--soft)}
.facts dd{margin:0}
.limits{margin:0}
.limits div{display:grid;grid-template-columns:12rem 1fr;gap:0 1.5rem;padding:.8rem 0;border-top:1px solid var(--rule)}
.limits dt{display:flex;justify-content:space-between;align-items:baseline}
.limits dd{max-width:46em;margin:0;color:var(--soft);font-size:.9375rem;line-height:1.55}
footer{margin-top:3.5rem;padding-top:1rem;padding-bottom:3rem;color:var(--soft);font-size:.875rem}
@media (max-width:46rem){
header>div{padding-top:2rem;padding-bottom:1.75rem}
header>div,main,footer{padding-left:1.125rem;padding-right:1.125rem}
.lead{font-size:1.1875rem}
.key{grid-template-columns:1fr 1fr;gap:1.25rem}
.key dd{font-size:1.625rem}
.axis{width:2rem}
.axis,.panel svg{height:15rem}
.panels{gap:.4rem}
.measure{display:block}
.bar{width:100%;max-width:7rem;margin:.35rem 0 .4rem}
.checks thead small{display:none}
.checks tr>:nth-child(5){display:none}
.checks tr>*{padding-right:.6rem;font-size:.9375rem}
.checks tbody th{white-space:normal}
.checks .badge{white-space:normal}
.checks .value,.checks .value small{display:block}
.roomy .cell{width:1.8rem;min-width:1.8rem}
.facts,.limits div{grid-template-columns:1fr}
.limits dt{justify-content:flex-start;gap:.75em}
.path,.cause{font-size:1.25rem}}
@media print{
:root{color-scheme:light;--paper:#fff;--ink:#000;--soft:#444;--rule:#ccc;--tint:#f2f2f2;--pass:#14663b;--fail:#a31c14;
--open:#6a4800}
body,body.pass,body.fail,body.open{--wash:#fff;font-size:10pt}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
header>div,main,footer{max-width:none;padding-left:0;padding-right:0}
header>div{padding-top:0}
.scroll{overflow:visible}
h2,h3{break-after:avoid}
figure,tbody,.facts div,.limits div{break-inside:avoid}}
"""
